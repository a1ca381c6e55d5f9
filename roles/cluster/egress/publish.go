package egress

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// rewriteTime is the time after which what this node has written is written again if another program has changed it.
const rewriteTime = 2 * time.Second

// publish writes which pods of this node have an egress address.
func (k *Keeper) publish(ctx context.Context) error {
	k.publishing.Lock() // not comparing: a holder waits for that, and must not wait for the server
	defer k.publishing.Unlock()
	k.comparing.Lock()
	last := k.last
	k.comparing.Unlock()
	if last == nil {
		return nil
	}
	want := last.publish
	k.mu.Lock()
	seen := k.facts.published[k.Node]
	done := maps.Equal(seen, want) || k.written != nil && maps.Equal(k.written, want) && time.Since(k.writtenAt) < rewriteTime
	k.mu.Unlock()
	if done {
		return nil
	}
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, requestTime)
	defer stop()
	err = k.write(ctx, nodePrefix+k.Node, "", map[string]string{podsKey: string(text)})
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.unread, "pods of this node")
	if err != nil {
		k.unread["pods of this node"] = fmt.Errorf("write them: %w", err)
		return err
	}
	k.written, k.writtenAt = want, time.Now()
	return nil
}

// requestTime bounds a request for which something else waits.
const requestTime = 2 * time.Second
