package policy

import (
	"context"
	"io/fs"

	"github.com/cnibox/cnibox/roles/netpolicy"
)

// Absent is a Source that is never read: policies came from an API server, and the agent has another registry now.
type Absent struct{}

// Run waits for the end of ctx.
func (Absent) Run(ctx context.Context, _ func(func(*netpolicy.Table))) { <-ctx.Done() }

// FromFiles returns false.
func (Absent) FromFiles() bool { return false }

// OnNode returns false.
func (Absent) OnNode(*netpolicy.Pod) bool { return false }

// Publish does nothing.
func (Absent) Publish(map[string]netpolicy.Given) {}

// Fetch finds no pod.
func (Absent) Fetch(context.Context, string, string) (*netpolicy.Pod, error) {
	return nil, fs.ErrNotExist
}
