// Package control asks the agent of this node for its network policies, and ends their enforcement. ADD's part is package enforce.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// StateRequest asks the agent for its netpolicy.State.
const StateRequest = `{"state":true}`

// StateTime bounds the wait for a State, and maxState its size in bytes: 100,000 pods have 30 MB.
const (
	StateTime = 30 * time.Second
	maxState  = 1 << 30
)

// State asks the agent for all policies and pods.
func State(ctx context.Context, s *store.Store) (*netpolicy.State, error) {
	ctx, cancel := context.WithTimeout(ctx, StateTime)
	defer cancel()
	answer, err := ask(ctx, s, StateRequest, maxState)
	if err != nil {
		return nil, err
	}
	state := new(netpolicy.State)
	if err := json.Unmarshal(answer, state); err != nil {
		return nil, fmt.Errorf("the agent's network policies: %w", err)
	}
	if state.Error != "" {
		return nil, errors.New(state.Error)
	}
	return state, nil
}

// ask sends a request to the agent that enforces policies, and returns its answer.
func ask(ctx context.Context, s *store.Store, request string, longest int64) ([]byte, error) {
	answer, err := enforce.Exchange(ctx, enforce.Socket(s), []byte(request), longest)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("no agent with -policy runs on this node: no process listens on %q", enforce.Socket(s))
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent about network policies: %w", err)
	}
	return answer, nil
}
