package cpus

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestQuota(t *testing.T) {
	const v2, v1 = "0::/system.slice/agent.service\n", "4:memory:/x\n3:cpu,cpuacct:/kubepods/pod1\n0::/\n"
	type files map[string]string
	for name, c := range map[string]struct {
		cgroup string
		files  files
		want   int
	}{
		"none":                 {"", nil, 0},
		"no limit":             {v2, files{"system.slice/agent.service/cpu.max": "max 100000\n"}, 0},
		"no controller":        {v2, nil, 0},
		"rounded up":           {v2, files{"system.slice/agent.service/cpu.max": "250001 100000\n"}, 3},
		"at least 2":           {v2, files{"system.slice/agent.service/cpu.max": "10000 100000\n"}, 2},
		"the container's root": {v2, files{"cpu.max": "400000 100000\n"}, 4},
		"its own first":        {v2, files{"cpu.max": "400000 100000\n", "system.slice/agent.service/cpu.max": "max 100000"}, 0},
		"version 1":            {v1, files{"cpu/kubepods/pod1/cpu.cfs_quota_us": "350000\n", "cpu/kubepods/pod1/cpu.cfs_period_us": "100000\n"}, 4},
		"version 1, no limit":  {v1, files{"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0},
		"huge":                 {v2, files{"cpu.max": "9223372036854775807 1\n"}, math.MaxInt32},
		"noise":                {"0::\n:::\n7\n\x00", files{"cpu.max": "1 2 3"}, 0},
		"no period":            {v2, files{"cpu.max": "100000 0"}, 0},
	} {
		root := t.TempDir()
		all := files{"proc/self/cgroup": c.cgroup}
		for path, content := range c.files {
			all["sys/fs/cgroup/"+path] = content
		}
		for path, content := range all {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := quota(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// What the runtime counts by itself is what is taken.
func TestAll(t *testing.T) {
	want := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(1)
	All()
	if got := runtime.GOMAXPROCS(0); os.Getenv("GOMAXPROCS") == "" && got != want {
		t.Errorf("%d, want %d", got, want)
	}
}
