// Command libraries measures what libraries would cost the program: each is linked into a copy of it, beside our own code, and the copies are
// compared with the program by size, page faults and time of VERSION. It prints the table of numbers of CONTRIBUTING.md.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	tags := flag.String("tags", "", "build tags of the program")
	only := flag.String("only", "", "a regular expression for names of libraries; others are left out")
	runs := flag.Int("runs", 400, "how many calls are measured of each copy")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *tags, *only, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "libraries:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tags, only string, runs int) error {
	names, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	dir, err := os.MkdirTemp("", "libraries")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	base := &build{library: library{name: "the program"}, tags: tags, file: filepath.Join(dir, "program")}
	all := []*build{base}
	for i, l := range libraries() {
		if names.MatchString(l.name) {
			all = append(all, &build{library: l, tags: l.tagged(tags), file: filepath.Join(dir, fmt.Sprint(i))})
		}
	}
	for _, b := range all {
		if err := b.make(ctx); err != nil {
			return fmt.Errorf("build with %s: %w", b.name, err)
		}
	}
	// In turns, so that what else the machine does meets all of them.
	for range runs {
		for _, b := range all {
			if err := b.call(ctx); err != nil {
				return fmt.Errorf("call with %s: %w", b.name, err)
			}
		}
	}
	return report(os.Stdout, all)
}

// build is one copy of the program.
type build struct {
	library
	tags, file string
	size       int64
	faults     []int64
	times      []time.Duration
}

// make builds the copy. Neither the tree nor go.mod are changed.
func (b *build) make(ctx context.Context) error {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w", "-tags", b.tags, "-o", b.file}
	var err error
	if b.uses != "" {
		args, err = b.add(ctx, args)
	}
	if err == nil {
		err = goTool(ctx, append(args, ".")...)
	}
	if err != nil {
		return err
	}
	// Pages of a file that was written in pieces take more faults.
	raw, err := os.ReadFile(b.file)
	if err != nil {
		return err
	}
	b.size = int64(len(raw))
	return errors.Join(os.Remove(b.file), os.WriteFile(b.file, raw, 0o755))
}

// add returns the arguments of a build with one more file, which uses the library.
func (b *build) add(ctx context.Context, args []string) ([]string, error) {
	mod := b.file + ".mod"
	for from, to := range map[string]string{"go.mod": mod, "go.sum": b.file + ".sum"} {
		raw, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, raw, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	if b.module != "" {
		if err := goTool(ctx, "get", "-modfile="+mod, b.module); err != nil {
			return nil, err
		}
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "library.go"): b.file + ".go"}})
	if err != nil {
		return nil, err
	}
	return append(args, "-mod=mod", "-modfile="+mod, "-overlay="+b.file+".json"),
		errors.Join(os.WriteFile(b.file+".go", b.source(), 0o600), os.WriteFile(b.file+".json", overlay, 0o600))
}

// source returns a file whose function no call runs, which the linker cannot know.
func (b *build) source() []byte {
	var s bytes.Buffer
	fmt.Fprintln(&s, "package main")
	for _, path := range append(b.imports, "os") {
		fmt.Fprintf(&s, "import %q\n", path)
	}
	fmt.Fprintf(&s, "func init() { if len(os.Args) > 1000 {\n%s\n} }\n", b.uses)
	return s.Bytes()
}

func goTool(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// call calls the copy as a plugin and notes what that took.
func (b *build) call(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, b.file)
	cmd.Args = []string{"bridge"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0"}`)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	begin := time.Now()
	err := cmd.Run()
	b.times = append(b.times, time.Since(begin))
	if err != nil {
		return err
	}
	b.faults = append(b.faults, cmd.ProcessState.SysUsage().(*syscall.Rusage).Minflt) //nolint:forcetypeassert // of Linux
	return nil
}

// report prints one row for each library. What the program has already is measured by a copy without it.
func report(w io.Writer, all []*build) error {
	base := all[0]
	size, faults, start := float64(base.size), slices.Min(base.faults), base.quartile()
	fmt.Fprintf(w, "The program: %.1f MB, VERSION %d page faults, %v.\n\n", size/1e6, faults, start.Round(10*time.Microsecond))
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| library\t| size\t| page faults\t| start\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|")
	for _, b := range all[1:] {
		sign := 1.0
		if b.linked != "" {
			sign = -1
		}
		more := sign * (float64(b.size) - size)
		fmt.Fprintf(t, "| %s\t| %+.2f MB, %+.1f %%\t| %+.0f\t| %+.0f %%\t|\n", b.name, more/1e6, 100*more/size,
			sign*float64(slices.Min(b.faults)-faults), sign*100*(float64(b.quartile())/float64(start)-1))
	}
	return t.Flush()
}

// quartile returns the time that a quarter of the calls took at most.
func (b *build) quartile() time.Duration {
	slices.Sort(b.times)
	return b.times[len(b.times)/4]
}
