package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The sections, by their names in -only.
const (
	sectionVersion    = "version"
	sectionBridge     = "bridge"
	sectionNFT        = "bridge-nft"
	sectionParallel   = "parallel"
	sectionChain      = "chain"
	sectionPublished  = "published"
	sectionNetworks   = "networks"
	sectionAzure      = "azure"
	sectionInterfaces = "interfaces"
	sectionRoles      = "roles"
	sectionStartup    = "startup"
	sectionAlloc      = "alloc"
	sectionDHCP       = "dhcp"
	sectionStorm      = "storm"
)

// allSections lists every section in the order in which they run.
func allSections() []string {
	return []string{
		sectionVersion, sectionBridge, sectionNFT, sectionParallel, sectionChain, sectionPublished, sectionNetworks, sectionAzure, sectionInterfaces, sectionRoles,
		sectionStartup, sectionAlloc, sectionDHCP, sectionStorm,
	}
}

// job is the order of the outer process to the process in the sandbox, as JSON on standard input.
type job struct {
	Sections   []string `json:"sections"`
	Rounds     int      `json:"rounds"`
	Parallel   int      `json:"parallel"`
	Containers int      `json:"containers"`
	Sides      pair     `json:"sides"`
	Multus     *side    `json:"multus,omitempty"` // the reference plugins with Multus beside them; nil without it
	AllocTest  string   `json:"allocTest"`        // the compiled test binary with BenchmarkAllocate; empty when the package does not exist
}

// pair holds the two competitors.
type pair struct {
	Ours side `json:"ours"`
	Peer side `json:"peer"`
}

// side is one competitor: a directory with its plugins under the names of their CNI types.
type side struct {
	Name  string   `json:"name"`  // short and unique; part of host-side names
	Dir   string   `json:"dir"`   // CNI_PATH
	Files []string `json:"files"` // what has to be installed for this side, for the bill of sizes
}

// prepareSides checks the command line and makes a directory of links to copies for each side, so that both are installed and found
// in the same way.
func prepareSides(o options, work string) (pair, error) {
	peers, err := pluginFiles(o.peersDir)
	if err != nil {
		return pair{}, fmt.Errorf("%w (make bench builds the reference plugins)", err)
	}
	p := pair{Peer: side{Name: "peer", Dir: filepath.Join(work, "peer"), Files: peers}}
	p.Ours = side{Name: "ours", Dir: filepath.Join(work, "ours")}
	if o.oursDir != "" {
		p.Ours.Files, err = pluginFiles(o.oursDir)
		if err != nil {
			return pair{}, err
		}
		if err := linkAll(p.Ours.Dir, p.Ours.Files); err != nil {
			return pair{}, err
		}
		return p, linkAll(p.Peer.Dir, p.Peer.Files)
	}
	binary, err := filepath.Abs(o.oursBinary)
	if err != nil {
		return pair{}, fmt.Errorf("find %q: %w", o.oursBinary, err)
	}
	p.Ours.Files = []string{binary}
	if binary, err = copyFile(p.Ours.Dir+".files", binary); err != nil {
		return pair{}, err
	}
	if out, err := exec.Command(binary, "install", "--link", "symlink", "--dir", p.Ours.Dir).CombinedOutput(); err != nil {
		return pair{}, fmt.Errorf("install %q: %w: %s", binary, err, out)
	}
	return p, linkAll(p.Peer.Dir, p.Peer.Files)
}

// prepareMultus returns the reference plugins with Multus, or nil if it was not given.
func prepareMultus(o options, p pair, work string) (*side, error) {
	if o.multus == "" {
		return nil, nil
	}
	file, err := filepath.Abs(o.multus)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", o.multus, err)
	}
	if _, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("-multus: %w", err)
	}
	s := &side{Name: "multus", Dir: filepath.Join(work, "multus")}
	if err := linkAll(s.Dir, p.Peer.Files); err != nil {
		return nil, err
	}
	return s, linkAs(s.Dir, file, "multus")
}

// pluginFiles lists the plugins in dir by absolute path, without ovs-cni: it is beside the reference plugins for tests, and is of another project.
func pluginFiles(dir string) ([]string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", dir, err)
	}
	entries, err := os.ReadDir(abs)
	if err != nil {
		return nil, fmt.Errorf("read plugin directory: %w", err)
	}
	var files []string
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != "ovs-cni" {
			files = append(files, filepath.Join(abs, e.Name()))
		}
	}
	return files, nil
}

// linkAll links a copy of every file into dir under the file's own name.
func linkAll(dir string, files []string) error {
	for _, f := range files {
		if err := linkAs(dir, f, filepath.Base(f)); err != nil {
			return err
		}
	}
	return nil
}

// linkAs makes dir and links a copy of file into it under a name.
func linkAs(dir, file, name string) error {
	installed, err := copyFile(dir+".files", file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make plugin directory: %w", err)
	}
	if err := os.Symlink(installed, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("link plugin: %w", err)
	}
	return nil
}

// copyFile writes a copy of a program into dir with one sequential write, as 'cnibox install' does, and returns its path.
// The page cache holds a written file in large pieces, but the linker's output, which the linker maps, in single pages: starting a
// plugin of 4 MB from these takes 0.2 ms longer.
func copyFile(dir, file string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory of programs: %w", err)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("find binary: %w", err)
	}
	path := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(path, program, 0o755); err != nil {
		return "", fmt.Errorf("install binary: %w", err)
	}
	return path, nil
}
