package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// demo is one run.
type demo struct {
	ctx    context.Context
	cnibox string
	lab    cluster
}

// cluster is what is needed of `cnibox lab status --json`.
type cluster struct {
	Switch, Dir string
	Nodes       []node
	Pings       []struct {
		From, To string
		MS       float64
		Error    string
	}
}

type node struct {
	Name, Netns, Dir string
	Address          netip.Prefix
	PodNetwork       netip.Prefix
	Pods             []pod
}

type pod struct {
	Name, Netns string
	Address     netip.Addr
}

func (d *demo) play() error {
	if err := privateHost(); err != nil {
		return fmt.Errorf("prepare a host of our own: %w", err)
	}
	before, err := d.leftovers()
	if err != nil {
		return err
	}
	for _, step := range []func() error{d.up, d.entries, d.ping, d.packet, d.down} {
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
	fmt.Println("  nothing: links, addresses, routes, nftables, namespaces and processes are as before")
	return nil
}

// up makes the cluster.
func (d *demo) up() error {
	say("Three nodes with two pods each: cnibox lab up")
	if _, err := d.output("", d.cnibox, "lab", "up", "--nodes", "3", "--pods", "2"); err != nil {
		return err
	}
	if err := d.look(); err != nil {
		return err
	}
	if err := d.print("", d.cnibox, "lab", "status", "--table"); err != nil {
		return err
	}
	fmt.Printf(`
  Each node is a network namespace with one interface, eth1; %s holds the
  bridge between them. cnibox agent runs in each node. What it tells the others is
  one file of the registry, %s:
`, d.lab.Switch, filepath.Join(d.lab.Dir, "cluster/nodes", d.lab.Nodes[1].Name+".json"))
	return d.print("", "cat", filepath.Join(d.lab.Dir, "cluster/nodes", d.lab.Nodes[1].Name+".json"))
}

func (d *demo) look(more ...string) error {
	out, err := d.output("", d.cnibox, append([]string{"lab", "status", "--json"}, more...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, &d.lab)
}

// entries shows what an agent made of what the others tell.
func (d *demo) entries() error {
	n := d.lab.Nodes[0]
	say("What the agent of " + n.Name + " made of it")
	for _, cmd := range []string{
		"ip -d -4 addr show dev flannel.1", "ip route show", "ip neigh show dev flannel.1", "bridge fdb show dev flannel.1",
		"cat " + filepath.Join(n.Dir, "subnet.env"),
	} {
		fmt.Printf("  %s $ %s\n", n.Name, cmd)
		if err := d.print(n.Netns, strings.Fields(cmd)[0], strings.Fields(cmd)[1:]...); err != nil {
			return err
		}
	}
	fmt.Printf("  %s $ cnibox agent status\n", n.Name)
	return d.print(n.Netns, "env", "CNIBOX_RUN_DIR="+filepath.Join(n.Dir, "run"), d.cnibox, "agent", "status", "--table")
}

// ping shows how long an echo takes between any two pods.
func (d *demo) ping() error {
	say("Every pod pings every other one, in ms")
	if err := d.look("--ping"); err != nil {
		return err
	}
	answers := map[[2]string]string{}
	for _, p := range d.lab.Pings {
		if p.Error != "" {
			return fmt.Errorf("ping from %s to %s: %s", p.From, p.To, p.Error)
		}
		answers[[2]string{p.From, p.To}] = fmt.Sprintf("%.2f", p.MS)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "  \t")
	for _, to := range d.pods() {
		fmt.Fprintf(w, "%s\t", to.Address)
	}
	for _, from := range d.pods() {
		fmt.Fprintf(w, "\n  %s\t", strings.TrimPrefix(from.Name, "lab-"))
		for _, to := range d.pods() {
			fmt.Fprintf(w, "%s\t", answers[[2]string{from.Name, to.Name}])
		}
	}
	fmt.Fprintln(w)
	if want := len(d.pods()) * (len(d.pods()) - 1); len(answers) != want {
		return fmt.Errorf("%d of %d pings were answered", len(answers), want)
	}
	return w.Flush()
}

func (d *demo) pods() (all []pod) {
	for _, n := range d.lab.Nodes {
		all = append(all, n.Pods...)
	}
	return all
}

// down removes the cluster.
func (d *demo) down() error {
	say("cnibox lab down")
	_, err := d.output("", d.cnibox, "lab", "down")
	if err == nil {
		fmt.Println("  the agents are stopped, the namespaces are gone")
	}
	return err
}

// leftovers is all that a lab could leave on this host.
func (d *demo) leftovers() (string, error) {
	var all bytes.Buffer
	for _, cmd := range [][]string{
		{"ip", "-br", "link"},
		{"ip", "-br", "address", "show", "scope", "global"},
		{"ip", "route", "show", "table", "all", "proto", "static"},
		{"nft", "list", "ruleset"},
		{"ip", "netns", "list"},
	} {
		out, err := d.output("", cmd[0], cmd[1:]...)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%s\n%s", strings.Join(cmd, " "), out)
	}
	// In a process namespace of its own there is the demo, and what it left.
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return "", err
	}
	for _, p := range processes {
		if path, err := os.Readlink(p); err == nil && path == d.cnibox {
			fmt.Fprintln(&all, "process", p)
		}
	}
	return all.String(), nil
}

// output runs a program in a node or pod, "" is the host, and returns what it printed.
func (d *demo) output(netns, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(d.ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := inNetns(netns, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s%s", filepath.Base(name), strings.Join(args, " "), err, out.Bytes(), errs.String())
	}
	return out.Bytes(), nil
}

// print runs a program and shows what it printed, indented, tabs as columns.
func (d *demo) print(netns, name string, args ...string) error {
	out, err := d.output(netns, name, args...)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for line := range strings.Lines(string(out)) {
		fmt.Fprint(w, "    ", line)
	}
	return w.Flush()
}

func say(title string) { fmt.Printf("\n%s\n", title) }
