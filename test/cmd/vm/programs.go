package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// programs replace busybox's applets of the same names, which lack options that tests use. They are copied from this machine and
// are first on PATH.
func programs() []string {
	return []string{
		"bridge", "dnsmasq", "ip", "nft", "nsenter", "tc",
		"iptables", "iptables-save", "iptables-nft", "iptables-nft-save", "iptables-legacy", "iptables-legacy-restore", "iptables-legacy-save",
		"ip6tables", "ip6tables-save", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-legacy", "ip6tables-legacy-restore", "ip6tables-legacy-save",
	}
}

// pluginDirs hold libraries that programs load by name: the matches and targets of iptables.
func pluginDirs() []string { return []string{"/usr/lib/x86_64-linux-gnu/xtables"} }

// programDir is their directory in the RAM disk.
const programDir = "usr/sbin"

// libraryDirs are the directories that Debian's loader searches (ld.so.conf), without resolving symbolic links.
func libraryDirs() []string {
	return []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"}
}

// addPrograms adds the programs and the libraries that they are linked with.
func addPrograms(a *archive) error {
	have := map[string]bool{}
	for _, name := range programs() {
		file, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("the tests need %s: %w", name, err)
		}
		a.file(path.Join(programDir, name), file)
		if err := addLibraries(a, file, have); err != nil {
			return err
		}
	}
	for _, dir := range pluginDirs() {
		files, err := filepath.Glob(filepath.Join(dir, "*.so"))
		if err != nil {
			return err
		}
		for _, file := range files {
			a.file(file[1:], file)
		}
	}
	return nil
}

// addLibraries adds what a program or library is linked with, each once.
func addLibraries(a *archive, file string, have map[string]bool) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	const loader = "lib64/ld-linux-x86-64.so.2"
	if !have[loader] && len(needed) > 0 {
		have[loader] = true
		a.file(loader, "/"+loader)
	}
	for _, name := range needed {
		if have[name] {
			continue
		}
		have[name] = true
		from, err := findLibrary(name)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		a.file(path.Join("lib/x86_64-linux-gnu", name), from)
		if err := addLibraries(a, from, have); err != nil {
			return err
		}
	}
	return nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraryDirs() {
		p := filepath.Join(dir, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("library %s: %w", name, os.ErrNotExist)
}
