package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// demo is one run.
type demo struct {
	ctx          context.Context
	cnibox, conf string
	dir          string
	plugins      string
	pods         []*pod
}

// pod is one namespace and what ADD answered for it.
type pod struct {
	name, netns string
	address     string
	result      result
}

// result is what the drawing needs of a CNI result.
type result struct {
	Interfaces []struct{ Name, Mac, Sandbox string }
	IPs        []struct{ Address, Gateway string }
}

func (d *demo) play() error {
	if err := d.setUp(); err != nil {
		return err
	}
	before, err := d.leftovers()
	if err != nil {
		return err
	}
	for _, step := range []func() error{d.attach, d.show, d.talk, d.detach} {
		if err := step(); err != nil {
			return err
		}
	}
	after, err := d.leftovers()
	if err != nil {
		return err
	}
	say("What is left")
	if before != after {
		return fmt.Errorf("something is left:\n%s\nbefore the demo there was:\n%s", after, before)
	}
	fmt.Println("  nothing: links, addresses, routes, nftables and state are as before")
	return nil
}

// setUp prepares the private host: mounts, loopback, plugin links, two namespaces.
func (d *demo) setUp() error {
	if err := privateHost(); err != nil {
		return fmt.Errorf("prepare a host of our own: %w", err)
	}
	d.dir = "/run/demo"
	// What the caller's environment says is the machine's state.
	for key, dir := range map[string]string{"CNIBOX_RUN_DIR": "/run/cnibox", "CNIBOX_STATE_DIR": "/run/demo/state"} {
		if err := os.Setenv(key, dir); err != nil {
			return err
		}
	}
	d.plugins = filepath.Join(d.dir, "bin")
	if err := os.MkdirAll(d.plugins, 0o755); err != nil {
		return err
	}
	say("Install: one binary, a link for each plugin")
	if err := d.print(d.cnibox, "install", "--dir", d.plugins); err != nil {
		return err
	}
	for _, name := range []string{"pod-a", "pod-b"} {
		p := &pod{name: name, netns: filepath.Join("/run/netns", name)}
		if err := newNetns(p.netns); err != nil {
			return err
		}
		d.pods = append(d.pods, p)
	}
	return nil
}

// attach runs ADD for both pods, as a runtime would.
func (d *demo) attach() error {
	say("ADD: both pods, through the plugin links")
	for _, p := range d.pods {
		start := time.Now()
		out, err := d.output(d.cnibox, "add", "--cni-path", d.plugins, d.conf, p.name, p.netns)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(out, &p.result); err != nil || len(p.result.IPs) == 0 {
			return fmt.Errorf("add %s: unexpected result %s", p.name, out)
		}
		p.address, _, _ = strings.Cut(p.result.IPs[0].Address, "/")
		fmt.Printf("  %s has %s (%.0f ms with the command line's own start)\n", p.name, p.result.IPs[0].Address, float64(time.Since(start))/1e6)
	}
	return nil
}

// show prints the node's state and the picture.
func (d *demo) show() error {
	say("State of the node")
	if err := d.print(d.cnibox, "state"); err != nil {
		return err
	}
	say("What was made")
	fmt.Print(draw(d.pods))
	return nil
}

// talk proves that packets and HTTP requests pass between pods and host.
func (d *demo) talk() error {
	say("They talk")
	gateway := d.pods[0].result.IPs[0].Gateway
	a, b := d.pods[0], d.pods[1]
	for _, t := range []struct{ from, fromNetns, to, address string }{
		{a.name, a.netns, b.name, b.address},
		{b.name, b.netns, a.name, a.address},
		{a.name, a.netns, "host", gateway},
		{"host", "", b.name, b.address},
	} {
		if err := d.ping(t.fromNetns, t.address); err != nil {
			return fmt.Errorf("ping from %s to %s: %w", t.from, t.to, err)
		}
		fmt.Printf("  ping %-5s → %-5s %s\n", t.from, t.to, t.address)
	}
	for _, t := range []struct{ from, fromNetns, to, toNetns, address string }{
		{a.name, a.netns, b.name, b.netns, b.address},
		{"host", "", a.name, a.netns, a.address},
		{b.name, b.netns, "host", "", gateway},
	} {
		answer, err := httpBetween(d.ctx, t.fromNetns, t.toNetns, t.address, "hello from "+t.to)
		if err != nil {
			return fmt.Errorf("http from %s to %s: %w", t.from, t.to, err)
		}
		fmt.Printf("  http %-5s → %-5s %q\n", t.from, t.to, answer)
	}
	return nil
}

// detach runs DEL for both pods and GC for what they shared.
func (d *demo) detach() error {
	say("DEL: both pods; GC: what they shared")
	for _, p := range d.pods {
		if _, err := d.output(d.cnibox, "del", "--cni-path", d.plugins, d.conf, p.name, p.netns); err != nil {
			return err
		}
		fmt.Printf("  %s is detached\n", p.name)
	}
	if _, err := d.output(d.cnibox, "gc", "--none", "--cni-path", d.plugins, d.conf); err != nil {
		return err
	}
	fmt.Println("  the bridge and its nftables entries are gone")
	return nil
}

func (d *demo) ping(netns, address string) error {
	return inNetns(netns, func() error {
		_, err := d.output("busybox", "ping", "-c", "1", "-W", "3", address)
		return err
	})
}

// leftovers is all that a CNI plugin could leave on this host and in the pods.
func (d *demo) leftovers() (string, error) {
	var all bytes.Buffer
	for _, netns := range []string{"", d.pods[0].netns, d.pods[1].netns} {
		err := inNetns(netns, func() error {
			for _, cmd := range [][]string{
				{"ip", "-br", "link"},
				{"ip", "-br", "address", "show", "scope", "global"},
				{"ip", "route", "show", "table", "all", "proto", "static"},
				{"nft", "list", "ruleset"},
			} {
				out, err := d.output(cmd[0], cmd[1:]...)
				if err != nil {
					return err
				}
				fmt.Fprintf(&all, "%s: %s\n%s", netns, strings.Join(cmd, " "), out)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	out, err := d.output(d.cnibox, "state", "--json")
	if err != nil {
		return "", err
	}
	var state struct{ Attachments, Leases []json.RawMessage }
	if err := json.Unmarshal(out, &state); err != nil {
		return "", err
	}
	fmt.Fprintf(&all, "state: %d attachments, %d leases\n", len(state.Attachments), len(state.Leases))
	return all.String(), nil
}

// output runs a program and returns what it printed.
func (d *demo) output(name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(d.ctx, name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s%s", filepath.Base(name), strings.Join(args, " "), err, out, errs.String())
	}
	return out, nil
}

// print runs a program and shows what it printed, indented, tabs as columns.
func (d *demo) print(name string, args ...string) error {
	out, err := d.output(name, args...)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for line := range strings.Lines(string(out)) {
		fmt.Fprint(w, "  ", line)
	}
	return w.Flush()
}

func say(title string) { fmt.Printf("\n%s\n", title) }
