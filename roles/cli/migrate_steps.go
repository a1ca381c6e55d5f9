package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// lookReference are the steps from the reference plugins. Their leases, rules and interfaces are
// taken over attachment by attachment, by ADD, CHECK and DEL.
func (m *migrator) lookReference() ([]step, error) { return m.pluginSteps() }

// backReference are the steps to the reference plugins.
func (m *migrator) backReference() ([]step, error) {
	restore, err := m.restoreStep()
	return []step{restore, m.drainStep()}, err
}

// checkNetworks returns an error if a network of the node is invalid: its pods could not be
// attached.
func (m *migrator) checkNetworks() error {
	return m.eachNetwork(func(file string, raw []byte) error {
		found := m.linter(m.dir).Lint(file, raw)
		if i := slices.IndexFunc(found, isFault); i >= 0 {
			return advice.With(fmt.Errorf("a network is invalid: %s", found[i].String()), "cnibox lint "+m.record.ConfDir)
		}
		return nil
	})
}

// eachNetwork calls do with the networks that runtimes read.
func (m *migrator) eachNetwork(do func(file string, raw []byte) error) error {
	files, err := configurations([]string{m.record.ConfDir})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range files {
		if f.listed {
			continue // runtimes do not read it
		}
		raw, err := smallfile.Read(f.path, lint.MaxSize)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = do(f.path, raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pluginSteps are the steps of every migration: the networks are valid, the plugins are
// cnibox's, and the runtimes use them.
func (m *migrator) pluginSteps() ([]step, error) {
	if err := m.checkNetworks(); err != nil {
		return nil, err
	}
	names, replaced, added, err := m.plugins()
	if err != nil {
		return nil, err
	}
	s := step{
		Name: "plugins", State: stepDone, What: fmt.Sprintf("%s of cnibox in %s", counted(len(names), "plugin"), m.dir),
		Why: "cnibox attaches new containers with the same networks; running containers stay unchanged",
	}
	if len(replaced)+len(added) > 0 {
		s.State, s.do = stepTodo, func() error {
			err := m.quietly(func() error {
				_, err := m.install(m.dir, plugindir.Symbolic, true, names)
				return err
			})
			if err == nil {
				m.reapDetached(m.c.Context)
			}
			return err
		}
		s.What = fmt.Sprintf("add %s to %s", counted(len(added), "plugin"), m.dir)
		if len(replaced) > 0 {
			s.What = fmt.Sprintf("replace %s in %s, keep the old files in %s, and add %s", strings.Join(replaced, ", "), m.dir, plugindir.ReplacedDir, counted(len(added), "other"))
		}
	}
	steps := []step{s}
	for _, r := range containerRuntimes() {
		if used, err := m.isUsed(&r); err != nil || !used {
			if err != nil {
				return nil, err
			}
			continue
		}
		one, err := m.runtimeStep(r, names)
		if err != nil {
			return nil, err
		}
		steps = append(steps, one)
	}
	return steps, nil
}

// plugins returns the plugins that cnibox gets: those that replace another program's file, and
// those that are new. Files that belong to another migration are kept.
func (m *migrator) plugins() (names, replaced, added []string, err error) {
	all, err := m.pluginNames(nil)
	if err != nil {
		return nil, nil, nil, err
	}
	if m.only {
		all = m.replaces
	}
	var others []string
	for _, one := range migrations() {
		if one.name != m.name {
			others = append(others, one.replaces...)
		}
	}
	d := plugindir.Open(m.dir, m.Executable)
	for _, n := range all {
		f, err := d.Look(n)
		switch {
		case err != nil:
			return nil, nil, nil, fmt.Errorf("look at %q: %w", n, err)
		case f.Standing == plugindir.Blocked:
			return nil, nil, nil, fmt.Errorf("%q is %s: remove it", filepath.Join(m.dir, n), f.What)
		case f.Standing == plugindir.Foreign && slices.Contains(others, n):
			continue
		case f.Standing == plugindir.Foreign:
			replaced = append(replaced, n)
		case f.Standing == plugindir.Absent:
			added = append(added, n)
		}
		names = append(names, n)
	}
	slices.Sort(replaced)
	return names, replaced, added, nil
}

// isUsed reports whether the node uses a runtime: its daemon runs, or it has none and is installed.
func (m *migrator) isUsed(r *containerRuntime) (bool, error) {
	if r.restart != "" {
		daemon, err := findProcess(r.name)
		return daemon != nil, err
	}
	_, here := findPlugin(filepath.SplitList(m.getenv("PATH")), r.name)
	return here, nil
}

// runtimeStep makes a runtime use the plugins.
func (m *migrator) runtimeStep(r containerRuntime, names []string) (step, error) {
	unused, searched, err := r.unused(m.dir, names)
	s := step{Name: r.name, State: stepDone, What: fmt.Sprintf("%s searches plugins in %s", r.name, strings.Join(searched, ", "))}
	switch {
	case err != nil || len(unused) == 0:
	case r.dropIn == "":
		s.State, s.What = stepManual, fmt.Sprintf("make %s, which searches plugins in %s, use %s: 'cnibox install --runtime %s' prints how", r.name, strings.Join(searched, ", "), m.dir, r.name)
	default:
		s.State, s.What = stepTodo, fmt.Sprintf("write %s, so that %s searches %s first", r.dropIn, r.name, m.dir)
		s.do = func() error { return m.configure(&r, m.dir, names) }
	}
	return s, err
}

// keepsCnibox reports whether the return restores the migration's own plugins only, because it replaced no other, or
// the node was migrated from another program before.
func (m *migrator) keepsCnibox() bool {
	before, _ := m.others()
	return m.only || len(m.replaces) > 0 && len(before) > 0
}

// restoreStep restores the plugins that were replaced.
func (m *migrator) restoreStep() (step, error) {
	s := step{Name: "plugins", State: stepDone, What: "the plugins in " + m.dir + " are not cnibox's"}
	d := plugindir.Open(m.dir, m.Executable)
	names, err := d.Files()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	restore := func() error { return m.handBack(m.c.Context, m.c, m.h) }
	if m.keepsCnibox() {
		names, s.What = m.replaces, fmt.Sprintf("%s in %s is not cnibox's", strings.Join(m.replaces, ", "), m.dir)
		restore = func() error { return m.uninstall(m.c, m.replaces, false) }
	}
	var restored []string
	removed := 0
	for _, n := range names {
		f, err := d.Look(n)
		switch {
		case err != nil:
			return s, fmt.Errorf("look at %q: %w", n, err)
		case f.Standing != plugindir.Ours, n == plugindir.Binary: // the step drain removes the binary
			continue
		}
		if _, err := os.Lstat(filepath.Join(m.dir, plugindir.ReplacedDir, n)); err == nil {
			restored = append(restored, n)
		} else {
			removed++
		}
	}
	if len(restored)+removed == 0 {
		return s, nil
	}
	s.State, s.What = stepTodo, fmt.Sprintf("remove %s from %s", counted(removed, "plugin"), m.dir)
	if len(restored) > 0 {
		s.What = fmt.Sprintf("restore %s in %s and remove %s", strings.Join(restored, ", "), m.dir, counted(removed, "other"))
	}
	s.Why = "new containers are attached by them; they know the addresses that are in use"
	s.do = func() error { return m.quietly(restore) }
	return s, nil
}

// drainStep removes cnibox when no container is attached by it.
func (m *migrator) drainStep() step {
	s := step{
		Name: "drain", State: stepTodo, What: "remove cnibox from " + m.dir + " when no container is attached by it",
		Why: "containers that cnibox attached keep running until then",
	}
	if m.keepsCnibox() {
		s.State, s.What = stepDone, "cnibox stays in place of the programs from which the node was migrated before"
	}
	if m.drained {
		s.State = stepDone
	}
	s.do = func() error {
		err := m.drain(m.c)
		m.drained = err == nil
		return err
	}
	return s
}
