package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
)

// defaultRunDir is the run directory when CNIBOX_RUN_DIR is not set.
const defaultRunDir = "/run/cnibox"

// pluginCodes begin the codes that are a plugin's own (CNI spec 1.1.0, section
// 5): below them CHECK could not compare at all.
const pluginCodes = 100

func (p *Process) addCommand() *cli.Command {
	return p.runtimeCommand("add", "attach a container as a runtime would, and print the result",
		"FILE CONTAINERID NETNS", func(c *cli.Context, r *call) error {
			res, err := r.cni.AddNetworkList(c.Context, r.list, r.rt)
			if err != nil {
				return err
			}
			if err = res.PrintTo(p.Stdout); err == nil {
				_, err = fmt.Fprintln(p.Stdout)
			}
			if err != nil {
				return fmt.Errorf("print the result: %w (it is attached)", err)
			}
			return nil
		})
}

func (p *Process) delCommand() *cli.Command {
	return p.runtimeCommand("del", "detach a container as a runtime would",
		"FILE CONTAINERID [NETNS]", func(c *cli.Context, r *call) error {
			return r.cni.DelNetworkList(c.Context, r.list, r.rt)
		})
}

func (p *Process) checkCommand() *cli.Command {
	return p.runtimeCommand("check", "compare an attachment with what was made",
		"FILE CONTAINERID NETNS", func(c *cli.Context, r *call) error {
			if kept, err := r.cni.GetNetworkListCachedResult(r.list, r.rt); err == nil && kept == nil && !r.list.DisableCheck {
				err = fmt.Errorf("interface %q of container %q on network %q was not attached by cnibox add", r.rt.IfName, r.rt.ContainerID, r.list.Name)
				return withHint(err, "cnibox state, for what runtimes attached")
			}
			err := r.cni.CheckNetworkList(c.Context, r.list, r.rt)
			var e *types.Error
			if errors.As(err, &e) && e.Code >= pluginCodes {
				return fmt.Errorf("%w: %w", errDifferent, err)
			}
			return err
		})
}

// call is one call through libcni.
type call struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
}

// runtimeCommand is what add, check and del have in common.
func (p *Process) runtimeCommand(name, usage, args string, run func(*cli.Context, *call) error) *cli.Command {
	return &cli.Command{
		Name:      name,
		Usage:     usage,
		ArgsUsage: args,
		Description: `NETNS is a path, or a name of "ip netns". Plugins are executed from --cni-path, as
a runtime does; results are cached under the run directory, apart from those of
runtimes.`,
		Flags: append(cniFlags(),
			&cli.StringFlag{Name: "cap", Usage: `capabilities as JSON: {"portMappings":[…]}`},
			&cli.StringFlag{Name: "args", Usage: `CNI_ARGS: "K=V;K2=V2"`},
			&cli.StringFlag{Name: "ifname", Value: "eth0", Usage: "the container's interface"},
		),
		Action: func(c *cli.Context) error {
			r, err := p.call(c, name != "del")
			if err != nil {
				return err
			}
			err = p.explainPlugin(c, run(c, r))
			if name == "add" {
				err = r.half(c, err)
			}
			return err
		},
	}
}

// half says how to take back what the plugins before the one that failed have
// made. A runtime calls DEL then; here that could be the DEL of what an earlier
// call attached.
func (r *call) half(c *cli.Context, err error) error {
	if err == nil || len(r.list.Plugins) < 2 || errors.As(err, new(*hintError)) {
		return err
	}
	if kept, cacheErr := r.cni.GetNetworkListCachedResult(r.list, r.rt); kept != nil || cacheErr != nil {
		return err
	}
	del := strings.Join(c.Args().Slice(), " ")
	if c.IsSet("ifname") {
		del += " --ifname " + r.rt.IfName
	}
	return withHint(err, "cnibox del "+del+", which takes back what the plugins before it made")
}

func cniFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "cni-path", Usage: "plugin directories, separated by colons ($CNI_PATH, else " + defaultPluginDir + ")"},
	}
}

// runtime is libcni with our directories.
func (p *Process) runtime(c *cli.Context, file string) (*call, error) {
	list, err := p.loadNetwork(file)
	if err != nil {
		return nil, err
	}
	path := p.pluginPath(c.String("cni-path"))
	for _, plugin := range list.Plugins {
		if _, ok := findPlugin(path, plugin.Network.Type); !ok {
			err := fmt.Errorf("plugin %q is not in %s", plugin.Network.Type, strings.Join(path, ":"))
			return nil, withHint(err, "cnibox install, or name the directory with --cni-path")
		}
	}
	run := p.getenv("CNIBOX_RUN_DIR")
	if run == "" {
		run = defaultRunDir
	}
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: p.Stderr}, PluginDecoder: version.PluginDecoder{}}
	return &call{
		cni:  libcni.NewCNIConfigWithCacheDir(path, filepath.Join(run, "cli"), exec),
		list: list,
	}, nil
}

// call reads FILE CONTAINERID NETNS and the flags.
func (p *Process) call(c *cli.Context, needNetns bool) (*call, error) {
	args := c.Args()
	if args.Len() > 3 || args.Len() < 2 || needNetns && args.Get(2) == "" {
		return nil, usagef("cnibox help "+c.Command.Name, "want %s", c.Command.ArgsUsage)
	}
	rt := &libcni.RuntimeConf{ContainerID: args.Get(1), NetNS: netnsPath(args.Get(2)), IfName: c.String("ifname")}
	for part := range strings.SplitSeq(c.String("args"), ";") {
		if part == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "=")
		if !ok || k == "" {
			return nil, usagef(`--args "K=V;K2=V2"`, "--args: %q is not KEY=VALUE", part)
		}
		rt.Args = append(rt.Args, [2]string{k, v})
	}
	if s := c.String("cap"); s != "" {
		if err := json.Unmarshal([]byte(s), &rt.CapabilityArgs); err != nil {
			return nil, usagef(`--cap '{"ips":["10.22.0.7"]}'`, "--cap: %v", roles.Mismatch(err))
		}
	}
	r, err := p.runtime(c, args.First())
	if err != nil {
		return nil, err
	}
	r.rt = rt
	return r, nil
}

// explainPlugin adds what to do next to a plugin's error.
func (p *Process) explainPlugin(c *cli.Context, err error) error {
	var e *types.Error
	if err == nil || errors.As(err, new(*hintError)) {
		return err
	}
	if os.Geteuid() != 0 {
		return withHint(err, "run it as root")
	}
	if !errors.As(err, &e) {
		return err
	}
	hint := ""
	switch e.Code {
	case types.ErrTryAgainLater:
		hint = "the same call again, later"
	case types.ErrInvalidNetworkConfig, types.ErrIncompatibleCNIVersion:
		hint = p.lintHint(c)
	case types.ErrInvalidNetNS:
		hint = "ip netns list, or the path of a namespace"
	}
	return withHint(err, hint)
}
