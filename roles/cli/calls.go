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
	"github.com/cnibox/cnibox/roles/cli/doctor"
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
		i := slices.IndexFunc(words[:min(len(words), 2)], func(word string) bool { // a script is its interpreter's argument
			return slices.Contains(filepath.SplitList(env["CNI_PATH"]), filepath.Dir(word))
		})
		stat, _ := os.ReadFile(dir + "/stat")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third field on
		if i < 0 || len(fields) < 20 {
			continue
		}
		c := runningCall{verb: env["CNI_COMMAND"], container: env["CNI_CONTAINERID"], ifName: env["CNI_IFNAME"], plugin: filepath.Base(words[i])}
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
