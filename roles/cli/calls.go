package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/doctor"
)

// A call that takes this long is reported: a plugin hangs, or waits for another program.
const slowCall = 5 * time.Second

// ticks is the unit of times in /proc/PID/stat, USER_HZ.
const ticks = 10 * time.Millisecond

// runningCall is a CNI call that a runtime's plugin is executing, the innermost plugin of a chain of delegations.
type runningCall struct {
	verb, container, ifName, pod, plugin string
	pid                                  int
	age                                  time.Duration
}

func (c *runningCall) String() string {
	who := c.container
	if c.pod != "" {
		who = c.pod
	}
	return fmt.Sprintf("%s of %s: %d s in the plugin %s, pid %d", c.verb, who, int(c.age.Seconds()), c.plugin, c.pid)
}

// runningCalls finds the calls of all plugins, also of other programs, by the environment of their processes in this thread's network
// namespace, which is the runtime's.
func runningCalls() (all []runningCall) {
	var uptime float64
	raw, _ := os.ReadFile("/proc/uptime")
	_, _ = fmt.Sscan(string(raw), &uptime)
	own, _ := os.Readlink("/proc/thread-self/ns/net")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if ns, _ := os.Readlink(dir + "/ns/net"); ns != own {
			continue
		}
		environ, err := smallfile.Read(dir+"/environ", maxArguments)
		if err != nil || !bytes.Contains(environ, []byte("CNI_COMMAND=")) {
			continue
		}
		env := map[string]string{}
		for _, pair := range strings.Split(string(environ), "\x00") {
			key, value, _ := strings.Cut(pair, "=")
			env[key] = value
		}
		args, _ := smallfile.Read(dir+"/cmdline", maxArguments)
		words := strings.Split(string(args), "\x00")
		stat, _ := os.ReadFile(dir + "/stat")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third field on
		plugin := pluginOf(words, env["CNI_PATH"])
		if plugin == "" && len(fields) > 1 && !isHelper(fields[1]) {
			plugin = "(now " + filepath.Base(words[0]) + ")" // it executed another program in its place
		}
		if plugin == "" || len(fields) < 20 {
			continue
		}
		c := runningCall{verb: env["CNI_COMMAND"], container: env["CNI_CONTAINERID"], ifName: env["CNI_IFNAME"], plugin: plugin}
		c.pid, _ = strconv.Atoi(filepath.Base(dir))
		start, _ := strconv.ParseInt(fields[19], 10, 64)
		c.age = max(time.Duration(uptime*float64(time.Second))-time.Duration(start)*ticks, 0)
		cniArgs, _ := roles.ParseArgs(env["CNI_ARGS"]) // the plugin reports faults
		c.pod = (&roles.Request{Args: cniArgs}).Pod()
		same := func(have runningCall) bool {
			return have.verb == c.verb && have.container == c.container && have.ifName == c.ifName
		}
		if i := slices.IndexFunc(all, same); i < 0 {
			all = append(all, c)
		} else if c.age < all[i].age { // the inner plugin began later
			all[i].plugin, all[i].pid, all[i].age = c.plugin, c.pid, c.age
		}
	}
	return all
}

// pluginOf returns the plugin that a process executes, or "". A script is an argument of its interpreter.
func pluginOf(words []string, path string) string {
	const most = 4 // an interpreter can have options
	for _, word := range words[:min(len(words), most)] {
		if filepath.IsAbs(word) && slices.ContainsFunc(filepath.SplitList(path), func(dir string) bool { return filepath.Clean(dir) == filepath.Dir(word) }) {
			return filepath.Base(word)
		}
	}
	return ""
}

// isHelper reports whether the parent of a process is a plugin of another program, which waits for it. A plugin of this program executes
// plugins only.
func isHelper(parent string) bool {
	environ, err := smallfile.Read("/proc/"+parent+"/environ", maxArguments)
	if err != nil || !bytes.Contains(environ, []byte("CNI_COMMAND=")) {
		return false
	}
	own, _ := os.Stat("/proc/self/exe")
	exe, err := os.Stat("/proc/" + parent + "/exe")
	return err != nil || !os.SameFile(own, exe)
}

// slowCalls returns the calls that doctor reports.
func slowCalls(all []runningCall) (slow []doctor.Call) {
	for i := range all {
		if c := &all[i]; c.age >= slowCall {
			slow = append(slow, doctor.Call{Plugin: c.plugin, What: c.String(), Fix: c.fix()})
		}
	}
	return slow
}

// fix ends the plugin, and with it the call.
func (c *runningCall) fix() string { return fmt.Sprintf("kill %d", c.pid) }
