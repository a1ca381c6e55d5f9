package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/cnibox/cnibox/test/internal/stage"
)

// demo is one run.
type demo struct {
	*stage.Stage
	lab cluster
}

// cluster is the part of `cnibox lab status --json` that the demo shows.
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
	before, err := d.LeftOnHost()
	if err != nil {
		return err
	}
	for _, step := range []func() error{d.up, d.entries, d.ping, d.packet, d.down} {
		if err := step(); err != nil {
			return err
		}
	}
	after, err := d.LeftOnHost()
	if err != nil {
		return err
	}
	stage.Say("What is left")
	if before != after {
		return fmt.Errorf("something is left:\n%s\nbefore the demo there was:\n%s", after, before)
	}
	fmt.Println("  nothing: links, addresses, routes, nftables, namespaces and processes are as before")
	return nil
}

// up makes the cluster.
func (d *demo) up() error {
	stage.Say("Three nodes with two pods each: cnibox lab up")
	if _, err := d.Output("", d.Cnibox, "lab", "up", "--nodes", "3", "--pods", "2"); err != nil {
		return err
	}
	if err := d.look(); err != nil {
		return err
	}
	if err := d.Print("", d.Cnibox, "lab", "status", "--table"); err != nil {
		return err
	}
	fmt.Printf(`
  Each node is a network namespace with one interface, eth1; %s holds the
  bridge between them. cnibox agent runs in each node. What it tells the others is
  one file of the registry, %s:
`, d.lab.Switch, filepath.Join(d.lab.Dir, "cluster/nodes", d.lab.Nodes[1].Name+".json"))
	return d.Print("", "cat", filepath.Join(d.lab.Dir, "cluster/nodes", d.lab.Nodes[1].Name+".json"))
}

func (d *demo) look(more ...string) error {
	out, err := d.Output("", d.Cnibox, append([]string{"lab", "status", "--json"}, more...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, &d.lab)
}

// entries shows the kernel's entries that an agent made for the other nodes.
func (d *demo) entries() error {
	n := d.lab.Nodes[0]
	stage.Say("What the agent of " + n.Name + " made of it")
	for _, cmd := range []string{
		"ip -d -4 addr show dev flannel.1", "ip route show", "ip neigh show dev flannel.1", "bridge fdb show dev flannel.1",
		"cat " + filepath.Join(n.Dir, "subnet.env"),
	} {
		fmt.Printf("  %s $ %s\n", n.Name, cmd)
		if err := d.Print(n.Netns, strings.Fields(cmd)[0], strings.Fields(cmd)[1:]...); err != nil {
			return err
		}
	}
	fmt.Printf("  %s $ cnibox agent status\n", n.Name)
	return d.Print(n.Netns, "env", "CNIBOX_RUN_DIR="+filepath.Join(n.Dir, "run"), d.Cnibox, "agent", "status", "--table")
}

// ping shows the round-trip time between any two pods.
func (d *demo) ping() error {
	stage.Say("Every pod pings every other one, in ms")
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
	stage.Say("cnibox lab down")
	_, err := d.Output("", d.Cnibox, "lab", "down")
	if err == nil {
		fmt.Println("  the agents are stopped, the namespaces are gone")
	}
	return err
}
