package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/cnibox/cnibox/test/cloudsim"
	"github.com/cnibox/cnibox/test/internal/stage"
)

// Where the node has its plugins, its network configuration and its state.
const (
	pluginDir = "/run/cni/bin"
	confFile  = "/run/cni/net.d/10-azure.conflist"
)

// conflist is that of an AKS node, unchanged.
const conflist = `{
   "cniVersion":"0.3.0",
   "name":"azure",
   "plugins":[
      {
         "type":"azure-vnet",
         "mode":"bridge",
         "bridge":"azure0",
         "ipam":{
            "type":"azure-vnet-ipam"
         }
      },
      {
         "type":"portmap",
         "capabilities":{
            "portMappings":true
         },
         "snat":true
      }
   ]
}
`

// demo is one run.
type demo struct {
	*stage.Stage
	// addrs are the pods' addresses, in the order of the pods.
	addrs []string
}

func (d *demo) play() error {
	host, err := d.LeftOnHost()
	if err != nil {
		return err
	}
	if err := d.cloud(); err != nil {
		return err
	}
	before, err := d.Left("node")
	if err != nil {
		return err
	}
	sim, err := d.simulate()
	if err != nil {
		return err
	}
	for _, step := range []func() error{d.metadata, d.install, d.five, d.bridge, d.wiring, d.pool, d.ping, d.exhaust, d.undo} {
		if err := step(); err != nil {
			return errors.Join(err, sim.Close())
		}
	}
	return d.left(host, before, sim)
}

// in runs cnibox on the node.
func (d *demo) in(args ...string) ([]byte, error) {
	env := []string{"CNIBOX_STATE_DIR=/run/state", "CNI_PATH=" + pluginDir, d.Cnibox}
	return d.Output("node", "env", append(env, args...)...)
}

// show runs a program on the node and prints its output.
func (d *demo) show(name string, args ...string) error {
	fmt.Printf("  node $ %s %s\n", name, strings.Join(args, " "))
	return d.Print("node", name, args...)
}

// metadata shows the metadata service's answer about the node.
func (d *demo) metadata() error {
	stage.Say("What Azure tells this node, at " + wireserver)
	const url = "http://" + wireserver + "/machine/plugins?comp=nmagent&type=getinterfaceinfov1"
	out, err := d.Output("node", "busybox", "wget", "-q", "-O", "-", url)
	if err != nil {
		return err
	}
	fmt.Printf("  node $ curl %q\n", url)
	lines := strings.Split(strings.ReplaceAll(string(out), "<IPAddress", "\n<IPAddress"), "\n")
	for i, line := range lines {
		switch {
		case i < 5 || i == len(lines)-1:
			fmt.Println("    " + line)
		case i == 5:
			fmt.Printf("    … %d more …\n", len(lines)-6)
		}
	}
	return nil
}

// install installs the plugins and the network configuration on the node.
func (d *demo) install() error {
	stage.Say("The node's plugins and its network, as on a node of AKS")
	if _, err := d.in("install", "--dir", pluginDir, "azure-vnet", "azure-vnet-ipam", "portmap"); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(confFile), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(confFile, []byte(conflist), 0o644); err != nil {
		return err
	}
	if err := d.show("ls", pluginDir); err != nil {
		return err
	}
	return d.show("cat", confFile)
}

// five attaches five pods.
func (d *demo) five() error {
	stage.Say("Five pods")
	for range 5 {
		took, err := d.attach()
		if err != nil {
			return err
		}
		fmt.Printf("    pod%d  %s\n", len(d.addrs), took)
	}
	return nil
}

// attach makes a pod and returns its address.
func (d *demo) attach() (string, error) {
	name := fmt.Sprintf("pod%d", len(d.addrs)+1)
	if _, err := d.Output("", "ip", "netns", "add", name); err != nil {
		return "", err
	}
	out, err := d.in("add", "--args", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+name, confFile, container(name), name)
	if err != nil {
		return "", err
	}
	var result struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return "", fmt.Errorf("the result has no address: %w: %s", err, out)
	}
	addr, _, _ := strings.Cut(result.IPs[0].Address, "/")
	d.addrs = append(d.addrs, addr)
	return addr, nil
}

// container returns a sandbox ID for a pod, as runtimes make them.
func container(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

// bridge shows the bridge's ports, as brctl does.
func (d *demo) bridge() error {
	stage.Say("eth0 is in azure0 now, and azure0 has its address and its routes")
	for _, cmd := range []string{"bridge link", "ip -br address show dev azure0", "ip route"} {
		f := strings.Fields(cmd)
		if err := d.show(f[0], f[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// ping shows that all pods and machines reach each other, and that the cloud saw one MAC only.
func (d *demo) ping() error {
	stage.Say("Pods ping each other, the node, and another machine of the VNet; that one pings them")
	type place struct{ netns, name, addr string }
	all := []place{{"node", "node", nodeAddr}, {"other", "other", otherAddr}}
	for i, addr := range d.addrs {
		all = append(all, place{fmt.Sprintf("pod%d", i+1), fmt.Sprintf("pod%d", i+1), addr})
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "    \t")
	for _, to := range all {
		fmt.Fprintf(w, "%s\t", to.addr)
	}
	for _, from := range all {
		fmt.Fprintf(w, "\n    %s\t", from.name)
		for _, to := range all {
			if from == to {
				fmt.Fprint(w, "-\t")
				continue
			}
			if _, err := d.Output(from.netns, "busybox", "ping", "-q", "-c", "1", "-W", "60", to.addr); err != nil {
				return fmt.Errorf("%s to %s: %w", from.name, to.addr, err)
			}
			fmt.Fprint(w, "ok\t")
		}
	}
	fmt.Fprintln(w)
	if err := w.Flush(); err != nil {
		return err
	}
	out, err := d.Output("fabric", "nft", "-j", "list", "counter", "netdev", "fabric", "refused")
	if err != nil {
		return err
	}
	if !strings.Contains(string(out), `"packets": 0,`) {
		return fmt.Errorf("the cloud saw frames of another MAC than %s: %s", nodeMAC, out)
	}
	fmt.Printf("  the cloud takes frames of eth0's own MAC only, %s: it had none to refuse\n", nodeMAC)
	return nil
}

// exhaust attaches pods until no address is left.
func (d *demo) exhaust() error {
	stage.Say(fmt.Sprintf("The node has %d addresses for pods: what becomes of one more", pods))
	for len(d.addrs) < pods {
		if _, err := d.attach(); err != nil {
			return err
		}
	}
	fmt.Printf("  %d pods are there, the last has %s\n  node $ cnibox add 10-azure.conflist … pod%d\n", pods, d.addrs[pods-1], pods+1)
	name := fmt.Sprintf("pod%d", pods+1)
	_, err := d.attach()
	if err == nil {
		return fmt.Errorf("%s has an address too", name)
	}
	_, message, _ := strings.Cut(err.Error(), ": exit status ")
	_, message, _ = strings.Cut(message, ": ")
	for line := range strings.Lines(message) {
		fold(strings.Fields(line))
	}
	return nil
}

// fold breaks words into lines of a readable width.
func fold(words []string) {
	line := "   "
	for _, w := range words {
		if len(line)+len(w) > 118 {
			fmt.Println(line)
			line = "     "
		}
		line += " " + w
	}
	fmt.Println(line)
}

// undo detaches all pods and restores eth0.
func (d *demo) undo() error {
	stage.Say("Everything is undone")
	for i := range d.addrs {
		name := fmt.Sprintf("pod%d", i+1)
		if _, err := d.in("del", confFile, container(name), name); err != nil {
			return err
		}
	}
	fmt.Printf("  %d pods are detached\n  node $ cnibox azure-vnet restore\n", len(d.addrs))
	out, err := d.in("azure-vnet", "restore")
	if err != nil {
		return err
	}
	fmt.Printf("    %s\n", strings.Join(strings.Fields(string(out)), " "))
	return d.show("ip", "-br", "address", "show", "dev", "eth0")
}

// left shows that the node, and then the machine, is as before.
func (d *demo) left(host, before string, sim *cloudsim.Sim) error {
	stage.Say("What is left")
	after, err := d.Left("node")
	if err != nil {
		return errors.Join(err, sim.Close())
	}
	if after != before {
		return errors.Join(fmt.Errorf("something is left on the node:\n%s\nbefore there was:\n%s", after, before), sim.Close())
	}
	fmt.Println("  on the node nothing: links, addresses, routes and packet filter rules are as before")
	if err := sim.Close(); err != nil {
		return err
	}
	if _, err := d.Output("", "ip", "-all", "netns", "delete"); err != nil {
		return err
	}
	all, err := d.LeftOnHost()
	if err != nil {
		return err
	}
	if all != host {
		return fmt.Errorf("something is left:\n%s\nbefore the demo there was:\n%s", all, host)
	}
	fmt.Println("  on the machine nothing: links, addresses, routes, packet filter rules, namespaces and processes are as before")
	return nil
}
