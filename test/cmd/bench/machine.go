package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine describes the machine of the measurement, without names of hosts or owners.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	MemGB  int    `json:"memGB"`
	Kernel string `json:"kernel"` // major.minor: a vendor's suffix says nothing about speed
	Go     string `json:"go"`
	Tables string `json:"tables"` // which iptables the reference executed; empty when there is none
	Date   string `json:"date"`
}

func (m machine) String() string {
	parts := []string{m.CPU, fmt.Sprintf("%d cores", m.Cores), fmt.Sprintf("%d GB", m.MemGB), "Linux " + m.Kernel, m.Go, m.Tables, m.Date}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func describeMachine(ctx context.Context) (machine, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return machine{}, fmt.Errorf("read kernel release: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return machine{}, fmt.Errorf("read memory size: %w", err)
	}
	cpu, err := cpuModel()
	if err != nil {
		return machine{}, err
	}
	return machine{
		CPU:    cpu,
		Cores:  runtime.NumCPU(),
		MemGB:  int((uint64(info.Totalram)*uint64(info.Unit) + 1<<29) >> 30),
		Kernel: majorMinor(unix.ByteSliceToString(uts.Release[:])),
		Go:     runtime.Version(),
		Tables: tablesVersion(ctx),
		Date:   time.Now().UTC().Format(time.DateOnly),
	}, nil
}

// tablesVersion returns the version that iptables prints, such as "iptables v1.8.9 (nf_tables)".
func tablesVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "iptables", "--version").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// referenceRelease returns the release of the reference plugins in a directory, such as "v1.10.0", which a plugin prints when no runtime
// calls it.
func referenceRelease(ctx context.Context, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "bridge")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("read release of the reference plugins: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	release, found := strings.CutPrefix(line, "CNI bridge plugin ")
	if !found {
		return "", fmt.Errorf("read release of the reference plugins: %s/bridge prints %q", dir, line)
	}
	return release, nil
}

// cpuModel returns the first model name in /proc/cpuinfo, or the architecture if there is none.
func cpuModel() (string, error) {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "", fmt.Errorf("read processor model: %w", err)
	}
	defer f.Close()
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		if key, value, ok := strings.Cut(scanner.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value), nil
		}
	}
	return runtime.GOARCH, scanner.Err()
}

// majorMinor returns the first two numbers of a kernel release.
func majorMinor(release string) string {
	parts := strings.SplitN(release, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}
