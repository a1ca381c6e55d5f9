package netopstest

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cnibox/cnibox/netops"
)

// ErrProbe is the error of a step that FailNth makes fail.
var ErrProbe = errors.New("made to fail by a test")

// FailNth is a probe that makes the N-th step fail, counted from 1. Later steps
// succeed.
type FailNth struct {
	N, Seen int
}

// Before fails the N-th step.
func (p *FailNth) Before(st netops.Step) error {
	p.Seen++
	if p.Seen == p.N {
		return fmt.Errorf("step %d: %w", p.N, ErrProbe)
	}
	return nil
}

// After does nothing.
func (p *FailNth) After(netops.Step) {}

// KillNth is a probe that kills the process with SIGKILL before the N-th step,
// or after it with Late. Steps are counted from 1.
type KillNth struct {
	N, Seen int
	Late    bool
}

// Before counts the steps and kills the process before the N-th step.
func (p *KillNth) Before(netops.Step) error {
	p.Seen++
	if p.Seen == p.N && !p.Late {
		kill()
	}
	return nil
}

// After kills the process after the N-th step.
func (p *KillNth) After(netops.Step) {
	if p.Seen == p.N && p.Late {
		kill()
	}
}

func kill() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// Recorder is a probe that records the steps that succeeded.
type Recorder struct{ Steps []netops.Step }

// Before does nothing.
func (r *Recorder) Before(netops.Step) error { return nil }

// After records the step.
func (r *Recorder) After(st netops.Step) { r.Steps = append(r.Steps, st) }
