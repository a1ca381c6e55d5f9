package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/internal/stage"
)

// The lab's names: see docs/lab.md.
const (
	dir    = "/run/cnibox-lab"
	node   = "lab-node1"
	client = "lab-node1-pod1"
	server = "lab-node1-pod2"
)

// deny isolates the second pod.
const deny = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {pod: pod2}}
`

// demo is one run.
type demo struct{ *stage.Stage }

func (d *demo) play() error {
	before, err := d.LeftOnHost()
	if err != nil {
		return err
	}
	for _, step := range []func() error{d.up, d.try, d.enforce, d.explain, d.remove, d.down} {
		if err := step(); err != nil {
			return err
		}
	}
	after, err := d.LeftOnHost()
	if err == nil && before != after {
		err = fmt.Errorf("something is left:\n%s\nbefore the demo there was:\n%s", after, before)
	}
	return err
}

// verb returns the command line of cnibox on the node.
func (d *demo) verb(args ...string) []string {
	return append([]string{"CNIBOX_RUN_DIR=" + dir + "/nodes/node1/run", "CNIBOX_STATE_DIR=" + dir + "/nodes/node1/state", d.Cnibox}, args...)
}

func (d *demo) ping() error {
	_, err := d.Output(client, "busybox", "ping", "-c", "1", "-W", "1", "10.244.0.3")
	return err
}

func (d *demo) up() error {
	stage.Say("One node with two pods, whose agent enforces policies: cnibox lab up --policy")
	if _, err := d.Output("", d.Cnibox, "lab", "up", "--nodes", "1", "--pods", "2", "--policy"); err != nil {
		return err
	}
	if err := d.Print(node, "env", d.verb("policy", "list", "--table")...); err != nil {
		return err
	}
	if err := d.ping(); err != nil {
		return err
	}
	fmt.Println("  the first pod pings the second")
	return nil
}

func (d *demo) try() error {
	stage.Say("What would this policy stop? cnibox policy try deny.yaml")
	fmt.Print("    " + strings.ReplaceAll(strings.TrimSuffix(deny, "\n"), "\n", "\n    ") + "\n\n")
	file := filepath.Join(dir, "deny.yaml")
	if err := os.WriteFile(file, []byte(deny), 0o600); err != nil {
		return err
	}
	return d.PrintFound(node, "env", d.verb("policy", "try", "--table", file)...)
}

func (d *demo) enforce() error {
	stage.Say("Enforce it: mv deny.yaml policy.d/")
	if err := os.Rename(filepath.Join(dir, "deny.yaml"), filepath.Join(dir, "policy.d", "deny.yaml")); err != nil {
		return err
	}
	err := d.Until("the policy", func() (bool, error) {
		out, err := d.Output(node, "env", d.verb("policy", "list", "--json")...)
		return strings.Contains(string(out), "default/deny"), err
	})
	if err == nil && d.ping() == nil {
		err = errors.New("the policy does not stop the ping")
	}
	if err == nil {
		fmt.Println("  the ping has no answer")
	}
	return err
}

func (d *demo) explain() error {
	stage.Say("Why? cnibox policy explain, and cnibox path")
	err := d.PrintFound(node, "env", d.verb("policy", "explain", "--table", "--protocol", "icmp", "default/"+client, "default/"+server)...)
	if err == nil {
		err = d.PrintFound(node, "env", d.verb("path", "--table", client, server)...)
	}
	return err
}

func (d *demo) remove() error {
	stage.Say("Remove it: rm policy.d/deny.yaml")
	if err := os.Remove(filepath.Join(dir, "policy.d", "deny.yaml")); err != nil {
		return err
	}
	err := d.Until("an answer", func() (bool, error) { return d.ping() == nil, d.Ctx.Err() })
	if err == nil {
		fmt.Println("  the first pod pings the second")
	}
	return err
}

func (d *demo) down() error {
	stage.Say("cnibox lab down")
	_, err := d.Output("", d.Cnibox, "lab", "down")
	if err == nil {
		fmt.Println("  nothing is left")
	}
	return err
}
