package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/store"
)

// defaultRunDir is the run directory when CNIBOX_RUN_DIR is not set.
const defaultRunDir = "/run/cnibox"

// pluginCodes is the first code that a plugin defines itself (CNI spec 1.1.0, section
// 5). A lower code means that CHECK did not compare anything.
const pluginCodes = 100

func (p *Process) addCommand() *cli.Command {
	return p.runtimeCommand("add", "attach a container as a runtime would, and print the result",
		"FILE CONTAINERID NETNS", func(c *cli.Context, r *call) error {
			r.Keep = true
			p.warnUnknownKeys(c)
			res, err := r.list.Add(c.Context, r.host.Delegate, r.Call)
			if err != nil {
				return err
			}
			var out bytes.Buffer
			raw, err := result.Encode(res, r.list.CNIVersion)
			if errors.Is(err, roles.ErrVersion) { // versions before 0.3.0 cannot express a result without addresses
				raw, err = json.Marshal(map[string]string{"cniVersion": r.list.CNIVersion})
			}
			if err == nil {
				err = r.writeCache(raw)
			}
			if err == nil {
				err = json.Indent(&out, raw, "", "    ")
			}
			if err == nil {
				_, err = fmt.Fprintln(p.Stdout, out.String())
			}
			if err != nil {
				return fmt.Errorf("print the result: %w (the container is attached)", err)
			}
			return nil
		})
}

func (p *Process) delCommand() *cli.Command {
	return p.runtimeCommand("del", "detach a container as a runtime would",
		"FILE CONTAINERID [NETNS]", func(c *cli.Context, r *call) error { return r.del(c.Context) })
}

// del runs DEL with the result that add cached, and removes the file of the cache.
func (r *call) del(ctx context.Context) error {
	r.Result, _ = r.readCache() // DEL does not need the result; an unreadable file is removed below
	if err := r.list.Del(ctx, r.host.Delegate, r.Call); err != nil {
		return err
	}
	_ = os.Remove(r.cacheFile()) // there is no file if a runtime attached the container
	return nil
}

func (p *Process) checkCommand() *cli.Command {
	cmd := p.runtimeCommand("check", "compare an attachment with its specification, or all of the node", "FILE CONTAINERID NETNS | --all", p.check)
	cmd.Description += `
  cnibox check --all                               the same as cnibox diff`
	cmd.Flags = append(cmd.Flags,
		&cli.BoolFlag{Name: "all", Usage: "compare all attachments of the node"},
	)
	one := cmd.Action
	cmd.Action = func(c *cli.Context) error {
		if !c.Bool("all") {
			return one(c)
		}
		if err := noArgs(c); err != nil {
			return err
		}
		return p.onNode(func(c *cli.Context, h *roles.Host) error { return p.diff(c, h, c.String("cni-path")) })(c)
	}
	return cmd
}

// check compares one attachment of add.
func (p *Process) check(c *cli.Context, r *call) error {
	if !result.AtLeast(r.list.CNIVersion, "0.4.0") {
		return fmt.Errorf("CNI %s has no CHECK: it requires 0.4.0", r.list.CNIVersion)
	}
	var err error
	r.Result, err = r.readCache()
	if err != nil {
		return err
	}
	if r.Result == nil && !r.list.DisableCheck {
		err := fmt.Errorf("interface %q of container %q on network %q was not attached by cnibox add", r.Request.IfName, r.Request.ContainerID, r.list.Name)
		return advice.With(err, "cnibox diff, which compares the attachments of runtimes")
	}
	err = r.list.Check(c.Context, r.host.Delegate, r.Call)
	if err == nil {
		return nil
	}
	if code, _ := p.ErrorCode(err); code >= pluginCodes {
		return fmt.Errorf("%w: %w", errDifferent, err)
	}
	return err
}

// call is one call of the plugins of a network's list.
type call struct {
	netlist.Call
	p    *Process
	host *roles.Host
	list *network
}

// runtimeCommand returns one of the commands add, check and del.
func (p *Process) runtimeCommand(name, usage, args string, run func(*cli.Context, *call) error) *cli.Command {
	return &cli.Command{
		Name:      name,
		Usage:     usage,
		ArgsUsage: args,
		Description: `NETNS is a path, or a name of "ip netns". check and del also accept the first 6 or more
digits of a CONTAINERID of 64. Plugins are found in --cni-path, as for
a runtime. Results are cached under the run directory. The caches of runtimes are not
changed.

examples:
  cnibox ` + name + ` NET.conflist web /run/netns/web`,
		Flags: append(cniFlags(),
			&cli.StringFlag{Name: "cap", Usage: `capabilities as JSON: {"portMappings":[…]}`},
			&cli.StringFlag{Name: "args", Usage: `CNI_ARGS: "K=V;K2=V2"`},
			&cli.StringSliceFlag{Name: "label", Usage: "label KEY=VALUE of the pod for network policies; repeatable"},
			&cli.StringFlag{Name: "ifname", Value: "eth0", Usage: "the container's interface"},
		),
		Action: func(c *cli.Context) error {
			r, done, err := p.call(c, name != "del")
			if err != nil {
				return err
			}
			defer done()
			return r.withDelHint(c, p.explainPlugin(c, run(c, r)))
		},
	}
}

// withDelHint adds the hint to run del, which removes the changes of the plugins before the
// failed one. add does not run DEL itself as a runtime does, because that could remove an
// attachment that an earlier call made. If such a call has written the cache, there is no hint.
func (r *call) withDelHint(c *cli.Context, err error) error {
	if !errors.As(err, new(*netlist.KeptError)) || errors.As(err, new(*advice.Error)) {
		return err
	}
	if kept, cacheErr := r.readCache(); kept != nil || cacheErr != nil {
		return err
	}
	del := strings.Join(c.Args().Slice(), " ")
	for _, flag := range []string{"ifname", "cni-path"} {
		if c.IsSet(flag) {
			del += " --" + flag + " " + c.String(flag)
		}
	}
	return advice.With(err, "cnibox del "+del+", which removes the changes of the plugins before the failed one")
}

func cniFlags() []cli.Flag { return pathFlag(defaultPluginDir) }

// pathFlag names the plugin directories without the flag and the variable.
func pathFlag(fallback string) []cli.Flag {
	return []cli.Flag{&cli.StringFlag{Name: "cni-path", Usage: "plugin directories, separated by colons ($CNI_PATH, else " + fallback + ")"}}
}

// runtime reads a network's file, checks that its plugins are installed, and opens the
// node. The returned function closes the node.
func (p *Process) runtime(c *cli.Context, file string) (*call, func(), error) {
	list, err := p.loadNetwork(file)
	if err != nil {
		return nil, nil, err
	}
	path := p.pluginPath(c.String("cni-path"))
	for _, plugin := range append(slices.Clip(list.Plugins), list.Unfused().Plugins...) {
		if _, ok := findPlugin(path, plugin.Type); !ok {
			err := fmt.Errorf("plugin %q is not in %s", plugin.Type, strings.Join(path, ":"))
			return nil, nil, advice.With(err, "cnibox install, or name the directory with --cni-path")
		}
	}
	h, done, err := p.host(c.Context, "")
	if err != nil {
		return nil, nil, err
	}
	return &call{p: p, host: h, list: list, Call: netlist.Call{Request: &roles.Request{Path: path, Env: p.Env}}}, done, nil
}

// call makes a call from the arguments FILE CONTAINERID NETNS and the flags.
func (p *Process) call(c *cli.Context, needNetns bool) (*call, func(), error) {
	args := c.Args()
	if args.Len() > 3 || args.Len() < 2 || needNetns && args.Get(2) == "" {
		return nil, nil, advice.Usagef("cnibox help "+c.Command.Name, "want %s", c.Command.ArgsUsage)
	}
	r, done, err := p.runtime(c, args.First())
	if err != nil {
		return nil, nil, err
	}
	cniArgs, given, err := attachmentFlags(c, r.list.List)
	if err != nil {
		done()
		return nil, nil, err
	}
	r.Runtime = given
	r.Request.Verb, r.Request.ContainerID, r.Request.Netns = roles.Verb(strings.ToUpper(c.Command.Name)), args.Get(1), netnsPath(args.Get(2))
	r.Request.IfName, r.Request.Args = c.String("ifname"), cniArgs
	if r.Request.Verb != roles.Add {
		r.Request.ContainerID, err = r.wholeID(c.Context, r.Request.ContainerID)
	}
	if err == nil {
		err = r.validate()
	}
	if err != nil {
		done()
		return nil, nil, p.explainPlugin(c, err)
	}
	return r, done, nil
}

// wholeID completes the beginning of a container's ID, as tables show it. It completes only IDs
// of 64 digits: "web-1" may be an ended container, and "web-10" another one.
func (r *call) wholeID(ctx context.Context, id string) (string, error) {
	if len(id) < shortIDLeast || !isHex(id) {
		return id, nil
	}
	var ids []string
	add := func(network, id string) {
		if network == r.list.Name && inventory.IsRandom(id) {
			ids = append(ids, id)
		}
	}
	for _, a := range recovery.ReadCaches(r.host, r.p.cacheDirs()) {
		add(a.Network, a.ContainerID)
	}
	err := r.host.Store.View(ctx, func(tx *store.Tx) error {
		all, err := tx.Attachments(r.list.Name)
		for i := range all {
			add(all[i].Network, all[i].ContainerID)
		}
		return err
	})
	if err != nil {
		return "", stateHint(err)
	}
	return inventory.CompleteID(ids, id)
}

// validate returns an error if the container ID or the interface name is not valid, or
// if the list has a plugin of this program that would refuse the request.
func (r *call) validate() error {
	if id, name := r.Request.ContainerID, r.Request.IfName; !roles.IsName(id) || roles.LinkName(name) != nil {
		return fmt.Errorf("%q and %q are not a container's ID and the name of an interface", id, name)
	}
	ours := func(p netlist.Plugin) bool { return r.host.Delegate.InProcess(p.Type, r.Request) }
	if !slices.ContainsFunc(r.list.Unfused().Plugins, ours) {
		return nil
	}
	return r.p.CheckRequest(r.Request)
}

// attachmentFlags returns the flags --args as CNI_ARGS and --cap as the runtime's
// values by capability, of which the list must declare each.
func attachmentFlags(c *cli.Context, list *netlist.List) (args roles.Args, given map[string]json.RawMessage, err error) {
	if args, err = roles.ParseArgs(c.String("args")); err != nil {
		return args, nil, advice.Usagef(`--args "K=V;K2=V2"`, "--args: %v", err)
	}
	if labels := strings.Join(c.StringSlice("label"), ","); labels != "" {
		if _, err := enforce.Labels(labels); err != nil {
			return args, nil, advice.Usagef("--label app=web", "--label: %v", err)
		}
		args, _ = roles.ParseArgs(args.String() + ";IgnoreUnknown=1;" + enforce.LabelsArg + "=" + labels) // both parts are valid
	}
	if s := c.String("cap"); s != "" {
		if err := json.Unmarshal([]byte(s), &given); err != nil {
			return args, nil, advice.Usagef(`--cap '{"ips":["10.22.0.7"]}'`, "--cap: %v", roles.Mismatch(err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !list.Can(name) {
			declared := cmp.Or(strings.Join(list.Capabilities(), ", "), "none")
			return args, nil, advice.Usagef(`"capabilities": {"`+name+`": true} in the plugin that reads it`,
				"--cap: no plugin of the list declares the capability %q, and runtimes would not pass it on; declared: %s", name, declared)
		}
	}
	return args, given, nil
}

// explainPlugin adds the next step for the user to a plugin's error.
func (p *Process) explainPlugin(c *cli.Context, err error) error {
	if err == nil || errors.As(err, new(*advice.Error)) {
		return err
	}
	code, details := p.ErrorCode(err)
	if details != "" {
		err = fmt.Errorf("%w; %s", err, details)
	}
	if os.Geteuid() != 0 {
		return advice.With(err, "run it as root")
	}
	hint := ""
	switch {
	case errors.Is(err, roles.ErrExhausted):
		return advice.With(err, "cnibox ipam show, which lists the owners of the addresses")
	case code == types.ErrTryAgainLater && c.Command.Name != "add": // add fails with this code also if a range is full
		hint = "repeat the call later"
	case code == types.ErrInvalidNetworkConfig, code == types.ErrIncompatibleCNIVersion:
		hint = p.lintHint(c)
	case code == types.ErrInvalidNetNS:
		hint = "ip netns list, or the path of a namespace"
	}
	return advice.With(err, hint)
}
