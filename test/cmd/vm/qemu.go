package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// machine is one boot.
type machine struct {
	emulator       []string // the command
	kernel, initrd string
	arch           arch
	functions      bool
	console        string // the kernel's messages are written to this file
	suites         []suite
	timeout        time.Duration
}

// boot runs the machine until it powers itself off, and copies the tests' output to out. It fails if a suite failed, skipped a test
// or did not end. If the machine stopped early it prints the kernel's last lines.
func boot(ctx context.Context, m machine, out io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.timeout, fmt.Errorf("machine still running after %s", m.timeout))
	defer cancel()
	mark := rand.Text()
	args := []string{
		// One processor: the emulator keeps one of the host's processors busy all the time, and the other one is left to what runs
		// beside it.
		"-accel", "tcg", "-smp", "1",
		"-m", "2560", // the RAM disk may have the half of it
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.kernel, "-initrd", m.initrd,
		"-serial", "file:" + m.console,
	}
	params := m.arch.params + " quiet panic=-1 oops=panic net.ifnames=0 cnibox.mark=" + mark
	if m.functions {
		args = append(args, m.arch.functions...)
		params += " pci=assign-busses" // the firmware leaves no bus numbers for virtual functions
	}
	args = append(args, "-append", params)
	cmd := exec.CommandContext(ctx, m.emulator[0], slices.Concat(m.emulator[1:], args, m.arch.machine, devices())...)
	cmd.Stderr = os.Stderr
	report, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start machine: %w", err)
	}
	start := time.Now()
	r := newReport(mark, m.suites)
	readErr := r.read(report, out)
	runErr := cmd.Wait()
	if ctx.Err() != nil {
		runErr = context.Cause(ctx)
	}
	err = errors.Join(runErr, readErr, r.verdict())
	for _, line := range r.summary {
		fmt.Fprintf(out, "vm: %s\n", line)
	}
	fmt.Fprintf(out, "vm: %d of %d suites passed in %s\n", r.passed, len(m.suites), since(start))
	if !r.done {
		fmt.Fprintf(out, "vm: the kernel's last words:\n%s\n", tail(m.console, 60))
	}
	return err
}

// devices are network devices on the machine's PCI bus. When a namespace ends, they return to the machine's own, as a veth does
// not. They are connected to each other (by a hub of QEMU) and to nothing else.
func devices() []string {
	var args []string
	for i := range 2 {
		args = append(args,
			"-netdev", fmt.Sprintf("hubport,id=net%d,hubid=0", i),
			// Without a ROM the firmware has nothing to load at boot.
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=52:54:00:00:00:%02x,romfile=", i, i))
	}
	return args
}

// report reads the report. Lines with the mark, a random word, come from init.sh; all others are output of
// tests. So no output of a test can be taken for a result.
type report struct {
	mark   string
	open   map[string]bool // suites that have not ended
	passed int
	faults []error
	tests  int  // verdict lines of the present suite
	skips  int  // those of them that were skips
	done   bool // the machine came to its end
	began  time.Time
	// summary has a line for each suite that ended.
	summary []string
}

func newReport(mark string, suites []suite) *report {
	r := &report{mark: mark, open: map[string]bool{}}
	for _, s := range suites {
		r.open[s.pkg] = true
	}
	return r
}

// read copies the tests' lines to out until in ends.
func (r *report) read(in io.Reader, out io.Writer) error {
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadString('\n')
		if text, words, ok := strings.Cut(line, r.mark+" "); ok {
			r.test(text)
			fmt.Fprint(out, text)
			r.event(strings.Fields(words), out)
		} else {
			r.test(line)
			fmt.Fprint(out, line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read report: %w", err)
		}
	}
}

// test reads a line of `-test.v`. A skip is a failure, since no other layer runs that test.
func (r *report) test(line string) {
	line = strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, "--- SKIP:"):
		r.skips++
		r.fault("skipped: %s", strings.TrimPrefix(line, "--- SKIP: "))
	case strings.HasPrefix(line, "--- PASS:"), strings.HasPrefix(line, "--- FAIL:"):
		r.tests++
	}
}

// event handles a message of init.sh.
func (r *report) event(words []string, out io.Writer) {
	switch {
	case len(words) == 3 && words[0] == "ready":
		fmt.Fprintf(out, "vm: Linux %s ready after %s s\n", words[1], words[2])
	case len(words) == 2 && words[0] == "begin":
		r.tests, r.skips, r.began = 0, 0, time.Now()
		fmt.Fprintf(out, "vm: %s\n", words[1])
	case len(words) == 3 && words[0] == "end":
		r.end(words[1], words[2])
	case len(words) == 1 && words[0] == "done":
		r.done = true
	default:
		r.fault("%s", strings.Join(words, " "))
	}
}

func (r *report) end(pkg, status string) {
	delete(r.open, pkg)
	word := "failed"
	switch {
	case status != "0":
		r.fault("tests of %q: exit status %s", pkg, status)
	case r.tests == 0:
		r.fault("tests of %q: none ran", pkg)
	case r.skips == 0:
		r.passed++
		word = "passed"
	}
	r.summary = append(r.summary, fmt.Sprintf("%s %s: %d tests in %s", pkg, word, r.tests, since(r.began)))
}

// since prints how long ago a time was.
func since(t time.Time) time.Duration { return time.Since(t).Round(time.Second / 10) }

func (r *report) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

// verdict returns nil only if every suite passed and the machine shut down by itself.
func (r *report) verdict() error {
	err := errors.Join(r.faults...)
	for pkg := range r.open {
		err = errors.Join(err, fmt.Errorf("tests of %q: did not end", pkg))
	}
	if !r.done {
		err = errors.Join(err, errors.New("machine stopped before its end"))
	}
	return err
}

// tail returns the last n lines of a file, or the error of reading it.
func tail(file string, n int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}
