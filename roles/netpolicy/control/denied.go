package control

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store"
)

// Denied is a connection of which policies denied packets.
type Denied struct {
	// Number counts the lines of an agent from 1.
	Number int64     `json:"number"`
	Time   time.Time `json:"time"`
	netpolicy.Flow
	// ClientPod and ServerPod are namespace/name, or "" for an address that is no pod's.
	ClientPod string `json:"clientPod,omitempty"`
	ServerPod string `json:"serverPod,omitempty"`
	// Direction is that in which the policies of a pod denied them, and Policies select it. They are empty if the policies have changed since.
	Direction string   `json:"direction,omitempty"`
	Policies  []string `json:"policies,omitempty"`
	Why       string   `json:"why"`
	Packets   int64    `json:"packets"`
}

// DeniedAnswer is the agent's answer to a DeniedQuestion.
type DeniedAnswer struct {
	// IsOn is false if the agent does not log denied packets.
	IsOn   bool     `json:"isOn"`
	Denied []Denied `json:"denied"`
}

// DeniedQuestion asks for the lines behind one with a number.
type DeniedQuestion struct {
	After int64 `json:"after"`
}

// DeniedAfter asks the agent for the lines behind one with a number.
func DeniedAfter(ctx context.Context, s *store.Store, number int64) (*DeniedAnswer, error) {
	a := new(DeniedAnswer)
	return a, ask(ctx, s, service.PolicyDenied, DeniedQuestion{number}, service.Into(a))
}
