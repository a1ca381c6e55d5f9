package control

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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

// DeniedAnswer is the agent's answer to a request with "denied".
type DeniedAnswer struct {
	// IsOn is false if the agent does not log denied packets.
	IsOn   bool     `json:"isOn"`
	Denied []Denied `json:"denied"`
}

// maxDeniedAnswer bounds the answer: 1,000 lines.
const maxDeniedAnswer = 4 << 20

// DeniedAfter asks the agent for the lines behind one with a number.
func DeniedAfter(ctx context.Context, s *store.Store, number int64) (*DeniedAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, StateTime)
	defer cancel()
	answer, err := ask(ctx, s, fmt.Sprintf(`{"denied":true,"deniedAfter":%d}`, number), maxDeniedAnswer)
	if err != nil {
		return nil, err
	}
	a := new(DeniedAnswer)
	if err := json.Unmarshal(answer, a); err != nil {
		return nil, fmt.Errorf("the agent's denied packets: %w", err)
	}
	return a, nil
}
