package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

var (
	// ErrNotFound means that the object, or the kind of object, does not exist.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that the object has changed, or is another one of the same name.
	ErrConflict = errors.New("conflict")
	// ErrForbidden means that the server does not accept the credentials, or does not permit the
	// request.
	ErrForbidden = errors.New("forbidden")
	// ErrExpired means that the version to continue from is too old, or not the server's. A new list
	// is needed.
	ErrExpired = errors.New("version expired")
)

// maxMessage bounds the server's message in an error.
const maxMessage = 512

// StatusError is a server's refusal (metav1.Status).
type StatusError struct {
	Code            int
	Reason, Message string
	// RetryAfter is the pause that the server requests.
	RetryAfter time.Duration
	// Fields are the fields of the object that the server refuses.
	Fields []string
}

// Error returns "API server: 403 Forbidden: the server's message".
func (e *StatusError) Error() string {
	s := fmt.Sprintf("API server: %d %s", e.Code, http.StatusText(e.Code))
	if e.Message != "" {
		s += ": " + printable(e.Message)
	}
	return s
}

// Is maps refusals to this package's sentinels and cluster.ErrUnavailable.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Code == http.StatusNotFound
	case ErrConflict:
		// A patch with another uid is refused as a change of an immutable field.
		return e.Code == http.StatusConflict || slices.Contains(e.Fields, "metadata.uid")
	case ErrForbidden:
		return e.Code == http.StatusForbidden || e.Code == http.StatusUnauthorized
	case ErrExpired:
		return e.Code == http.StatusGone || e.Reason == "Expired" || e.Code == http.StatusGatewayTimeout
	case cluster.ErrInvalid:
		return e.Code == http.StatusBadRequest || e.Code == http.StatusUnprocessableEntity
	case cluster.ErrUnavailable:
		return e.Code == http.StatusTooManyRequests || e.Code >= 500 || e.Code >= 300 && e.Code < 400
	}
	return false
}

// printable removes control characters, so that a server cannot write them to a
// terminal or a log.
func printable(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\ufffd' {
			return ' '
		}
		return r
	}, s)
}

// statusError reads a refusal and closes its body.
func statusError(resp *http.Response) error {
	b, _ := web.ReadAll(resp.Body, maxStatus) // the code alone suffices
	web.Discard(resp.Body)
	var s status
	if isProtobuf(resp) {
		if b, err := unwrap(b); err == nil {
			_ = ReadMessage(b, &s)
		}
	} else {
		_ = json.Unmarshal(b, &s)
	}
	e := s.failure()
	e.Code, e.RetryAfter = resp.StatusCode, web.RetryAfter(resp.Header)
	return e
}

// status has the fields of a metav1.Status that are used here.
type status struct {
	Message string `json:"message" protobuf:"3"`
	Reason  string `json:"reason"  protobuf:"4"`
	Code    int    `json:"code"    protobuf:"6"`
	Details struct {
		Causes []struct {
			Field string `json:"field" protobuf:"3"`
		} `json:"causes" protobuf:"4"`
	} `json:"details" protobuf:"5"`
}

// failure returns the status as an error.
func (s *status) failure() *StatusError {
	e := &StatusError{Code: s.Code, Reason: s.Reason, Message: s.Message}
	for _, c := range s.Details.Causes {
		e.Fields = append(e.Fields, c.Field)
	}
	return e
}
