// Package cpus gives a process the CPUs that it may use.
package cpus

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// All is for what runs on: a daemon, a command line. It takes the CPUs that the process may run on, and no more than
// its cgroup's quota pays for, as the runtime does by itself at a start (https://go.dev/doc/go1.25#container-aware-gomaxprocs).
// A program of `make build` leaves that out (internal/initorder): a plugin's call takes one CPU in any case. Unlike the
// runtime it looks once: a quota that is changed later counts from the next start.
func All() {
	runtime.SetDefaultGOMAXPROCS()
	if n := quota("/"); n > 0 && n < runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// least is what the runtime takes of a smaller quota.
const least = 2

// quota is how many CPUs this process's cgroup may use, rounded up, and 0 where nothing limits it (cgroups(7), and
// Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst of the kernel).
func quota(root string) int {
	of, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(of)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		var used, period float64
		switch {
		case f[0] == "0" && f[1] == "":
			if v := numbers(root, "", f[2], "cpu.max"); len(v) == 2 {
				used, period = v[0], v[1]
			}
		case slices.Contains(strings.Split(f[1], ","), "cpu"):
			q, p := numbers(root, "cpu", f[2], "cpu.cfs_quota_us"), numbers(root, "cpu", f[2], "cpu.cfs_period_us")
			if len(q) == 1 && len(p) == 1 {
				used, period = q[0], p[0]
			}
		}
		if used > 0 && period > 0 {
			return max(least, int(math.Ceil(min(used/period, math.MaxInt32))))
		}
	}
	return 0
}

// numbers reads a file of a cgroup: none of what has a word, "max", or is not there. In a container the cgroup's own
// path may be the host's, while the hierarchy that is mounted begins at it.
func numbers(root, hierarchy, path, name string) []float64 {
	mount := filepath.Join(root, "sys/fs/cgroup", hierarchy)
	b, err := os.ReadFile(filepath.Join(mount, path, name))
	if err != nil {
		b, err = os.ReadFile(filepath.Join(mount, name))
	}
	if err != nil {
		return nil
	}
	var all []float64
	for _, word := range strings.Fields(string(b)) {
		n, err := strconv.ParseUint(word, 10, 63)
		if err != nil {
			return nil
		}
		all = append(all, float64(n))
	}
	return all
}
