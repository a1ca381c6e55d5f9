package nad

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/internal/smallfile"
)

// maxFile is the maximum size of a file in bytes.
const maxFile = 1 << 20

// confFile is a configuration file of a directory, or the error of reading it.
type confFile struct {
	path string
	raw  []byte
	conf *conf
	err  error
}

// findInConfDir returns the configuration with that name in ConfDir. A .conflist file precedes
// .conf and .json files; within each group the first by file name is used (the standard, section
// 3.4.1). Invalid other files do not matter.
func (f *Finder) findInConfDir(name string) (*Network, error) {
	var broken []error
	for _, exts := range [][]string{{".conflist"}, {".conf", ".json"}} {
		files, err := confFiles(f.ConfDir, exts)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			switch {
			case file.err != nil:
				broken = append(broken, file.err)
			case file.conf.Name == name:
				return &Network{Conf: file.raw, From: file.path}, f.notSelf(file.path, file.conf)
			}
		}
	}
	err := fmt.Errorf("%w in %s: no .conflist, .conf or .json file with \"name\": %q", ErrNotFound, f.ConfDir, name)
	if len(broken) > 0 {
		err = fmt.Errorf("%w; some files cannot be read: %w", err, errors.Join(broken...))
	}
	return nil, err
}

// firstInDir returns the first configuration of a directory by file name. It skips configurations
// of the calling plugin.
func (f *Finder) firstInDir(dir string) (*Network, error) {
	files, err := confFiles(dir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		switch {
		case file.err != nil:
			return nil, file.err // skipping the file would select another network
		case f.notSelf(file.path, file.conf) == nil:
			return &Network{Conf: file.raw, From: file.path}, nil
		}
	}
	return nil, fmt.Errorf("%w in %s: no .conflist, .conf or .json file of another plugin", ErrNotFound, dir)
}

// confFiles reads the files with one of the extensions, sorted by name. A missing directory has no
// files.
func confFiles(path string, exts []string) ([]confFile, error) {
	dir, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("directory of networks: %w", err)
	}
	defer dir.Close()
	if err := checkTrusted(dir, "."); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("directory of networks: %w", err)
	}
	var out []confFile
	for _, e := range entries {
		if !slices.Contains(exts, filepath.Ext(e.Name())) || e.IsDir() {
			continue
		}
		file := confFile{path: filepath.Join(path, e.Name())}
		file.raw, file.conf, file.err = readConfFile(dir, e.Name())
		out = append(out, file)
	}
	return out, nil
}

// readConfFile reads a configuration. The name is required.
func readConfFile(dir *os.Root, name string) ([]byte, *conf, error) {
	path := filepath.Join(dir.Name(), name)
	raw, err := smallfile.ReadTrusted(dir, name, maxFile)
	if err != nil {
		return nil, nil, fmt.Errorf("network: %w", err)
	}
	c, err := readConf(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.Name == "" {
		return nil, nil, fmt.Errorf("%s: name: is missing", path)
	}
	return raw, c, nil
}

// checkTrusted returns an error for a directory in which others than root can create files.
func checkTrusted(dir *os.Root, name string) error {
	st, err := dir.Stat(name)
	if err != nil {
		return fmt.Errorf("directory of networks: %w", err)
	}
	return smallfile.Trusted(filepath.Join(dir.Name(), name), st)
}
