package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// roleVersion is the VERSION call of one role under its own name.
type roleVersion struct {
	Role  string   `json:"role"`
	Calls compared `json:"calls"`
}

// measureRoles times VERSION of every role that both sides have.
func measureRoles(ctx context.Context, j job) ([]roleVersion, error) {
	entries, err := os.ReadDir(j.Sides.Peer.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the reference plugins: %w", err)
	}
	var list []roleVersion
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(j.Sides.Ours.Dir, e.Name())); err != nil {
			continue
		}
		c, err := timeVersion(ctx, j, e.Name(), j.Rounds)
		if err != nil {
			return nil, err
		}
		list = append(list, roleVersion{Role: e.Name(), Calls: *c})
	}
	return list, nil
}

// timeVersion times the cheapest call: start, answer, exit.
func timeVersion(ctx context.Context, j job, role string, rounds int) (*compared, error) {
	var t timings
	conf := []byte(`{"cniVersion":"1.0.0"}`)
	for round := range warmRounds + rounds {
		for _, i := range turns(round) {
			s := []side{j.Sides.Ours, j.Sides.Peer}[i]
			a, err := s.do(ctx, call{Plugin: role, Verb: "VERSION", Conf: conf})
			if err != nil {
				return nil, err
			}
			if !strings.Contains(string(a.Stdout), "supportedVersions") {
				return nil, fmt.Errorf("%s of %s answered VERSION with %q", role, s.Name, a.Stdout)
			}
			if round >= warmRounds {
				t[i] = append(t[i], a.Took)
			}
		}
	}
	c := t.compared()
	return &c, nil
}
