// Package control asks the agent of this node for its network policies, and ends their enforcement. ADD's part is package enforce.
package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store"
)

// StateTime bounds the wait for a State.
const StateTime = 30 * time.Second

// State asks the agent for all policies and pods.
func State(ctx context.Context, s *store.Store) (*netpolicy.State, error) {
	state := new(netpolicy.State)
	return state, ask(ctx, s, service.PolicyState, nil, service.Into(state))
}

// ask asks the agent that enforces policies.
func ask(ctx context.Context, s *store.Store, name string, args any, each func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, StateTime)
	defer cancel()
	var said service.Error
	err := service.Ask(ctx, s.AgentSocket(), name, args, each)
	switch {
	case errors.Is(err, service.ErrAbsent):
		return fmt.Errorf("no agent with -policy runs on this node: %w", err)
	case err == nil || errors.As(err, &said):
		return err
	}
	return fmt.Errorf("ask the agent about network policies: %w", err)
}
