package cloudsim

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// maxTokenTTL is the longest lifetime of a token in seconds, at AWS and Alibaba.
const maxTokenTTL = 21600

// maxTokens bounds the tokens in memory; the oldest is dropped.
const maxTokens = 1024

// tokens are those that a provider issued.
type tokens struct {
	now func() time.Time

	mu    sync.Mutex
	given uint64
	ends  map[string]time.Time
	order []string
}

func newTokens(now func() time.Time) *tokens {
	return &tokens{now: now, ends: map[string]time.Time{}}
}

// issue answers a request for a token: the header has its lifetime in seconds.
func (t *tokens) issue(r *http.Request, ttlHeader string) reply {
	seconds, err := strconv.Atoi(r.Header.Get(ttlHeader))
	if err != nil || seconds < 1 || seconds > maxTokenTTL {
		return page(http.StatusBadRequest)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given++
	token := fmt.Sprintf("AQAEAL%034dQ==", t.given)
	if len(t.order) == maxTokens {
		delete(t.ends, t.order[0])
		t.order = t.order[1:]
	}
	t.ends[token] = t.now().Add(time.Duration(seconds) * time.Second)
	t.order = append(t.order, token)
	return answer(http.StatusOK, typeText, token).with(ttlHeader, strconv.Itoa(seconds))
}

// valid reports whether a token is valid now. With once it ends the token.
func (t *tokens) valid(token string, once bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	end, ok := t.ends[token]
	if once {
		delete(t.ends, token)
	}
	return ok && t.now().Before(end)
}

// expire ends every token and returns their number.
func (t *tokens) expire() (ended int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended = len(t.ends)
	clear(t.ends)
	t.order = nil
	return ended
}
