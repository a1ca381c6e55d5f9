package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// callTimeout ends a plugin that hangs.
const callTimeout = 2 * time.Minute

// call is one execution of a plugin, as a runtime makes it.
type call struct {
	Plugin    string // CNI type: the name under which the plugin is executed
	Verb      string // CNI_COMMAND
	Container container
	Conf      []byte // standard input
}

// answer is the result of a call.
type answer struct {
	Took   time.Duration // from before the fork until the process was reaped
	Stdout []byte
	Stderr []byte
}

// do executes the plugin and times it. Input and output are memory files that the plugin gets directly: no goroutine of ours copies
// a pipe while the time is taken.
func (s side) do(ctx context.Context, c call, extraEnv ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	files, err := memoryFiles("stdin", "stdout", "stderr")
	if err != nil {
		return answer{}, err
	}
	defer closeAll(files)
	// A write at an offset leaves the position at 0, where the plugin starts to read.
	if _, err := files[0].WriteAt(c.Conf, 0); err != nil {
		return answer{}, fmt.Errorf("write configuration: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.Dir, c.Plugin))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.Env = append(s.env(c), extraEnv...)
	start := time.Now()
	err = cmd.Run()
	a := answer{Took: time.Since(start)}
	var readErrs [2]error
	a.Stdout, readErrs[0] = contents(files[1])
	a.Stderr, readErrs[1] = contents(files[2])
	if err != nil {
		return a, fmt.Errorf("%s %s of %s for %q: %w: %s", s.Name, c.Plugin, c.Verb, c.Container.ID, err, a.errorText())
	}
	return a, errors.Join(readErrs[0], readErrs[1])
}

// env returns the environment of a call. It is the same for both sides except for CNI_PATH, and has only PATH of the caller's.
func (s side) env(c call) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"CNIBOX_STATE_DIR=" + filepath.Join(dataDir, "state"),
		"CNI_COMMAND=" + c.Verb,
		"CNI_CONTAINERID=" + c.Container.ID,
		"CNI_NETNS=" + c.Container.Netns,
		"CNI_IFNAME=eth0",
		"CNI_PATH=" + s.Dir,
	}
}

// errorText returns the plugin's error object, or else its output.
func (a answer) errorText() string {
	return strings.TrimSpace(string(a.Stdout) + " " + string(a.Stderr))
}

// address returns the first address of an ADD result, which also proves that there is one.
func (a answer) address() (string, error) {
	var result struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(a.Stdout, &result); err != nil {
		return "", fmt.Errorf("decode result: %w", err)
	}
	if len(result.IPs) == 0 {
		return "", fmt.Errorf("decode result: no address in %s", a.Stdout)
	}
	return result.IPs[0].Address, nil
}

// memoryFiles makes one anonymous file in memory for each name.
func memoryFiles(names ...string) ([]*os.File, error) {
	var files []*os.File
	for _, name := range names {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("make memory file: %w", err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, nil
}

// contents reads a memory file from its start, at any position.
func contents(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("measure output: %w", err)
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("read output: %w", err)
	}
	return data, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close() // anonymous memory: there is nothing that a failed close could lose
	}
}
