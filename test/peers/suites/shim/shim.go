// Package main stands in for a reference plugin in its own test suite: build.sh puts this file in place of the plugin's, or beside it.
// Its commands execute the plugin of the environment variable CNIBOX_PLUGIN, and the program itself is the plugin that -ldflags name.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// program is the path of the plugin that main executes.
var program string

func main() {
	fmt.Fprintln(os.Stderr, syscall.Exec(program, []string{program}, os.Environ()))
	os.Exit(1)
}

func cmdAdd(args *skel.CmdArgs) error    { return call("ADD", args) }
func cmdCheck(args *skel.CmdArgs) error  { return call("CHECK", args) }
func cmdDel(args *skel.CmdArgs) error    { return call("DEL", args) }
func cmdGC(args *skel.CmdArgs) error     { return call("GC", args) }
func cmdStatus(args *skel.CmdArgs) error { return call("STATUS", args) }

// call executes the plugin in the network namespace of the calling thread, with its result on stdout, where a suite reads it.
func call(verb string, args *skel.CmdArgs) error {
	plugin := os.Getenv("CNIBOX_PLUGIN")
	path := args.Path
	if path == "" {
		path = filepath.Dir(plugin)
	}
	c := exec.Command(plugin)
	c.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+args.ContainerID, "CNI_NETNS="+args.Netns, "CNI_IFNAME="+args.IfName,
		"CNI_ARGS="+args.Args, "CNI_PATH="+path)
	c.Stdin = bytes.NewReader(args.StdinData)
	var stdout bytes.Buffer
	c.Stdout, c.Stderr = &stdout, os.Stderr
	if err := c.Run(); err != nil {
		said := &types.Error{}
		if json.Unmarshal(stdout.Bytes(), said) != nil {
			return fmt.Errorf("%w: %s", err, &stdout)
		}
		if verb == "CHECK" && said.Code == types.ErrIncompatibleCNIVersion {
			said.Msg = "config version does not allow CHECK" // the suites know this error by skel's text
		}
		return said
	}
	_, err := os.Stdout.Write(stdout.Bytes())
	return err
}
