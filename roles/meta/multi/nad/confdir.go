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

// maxFile bounds a file, in bytes.
const maxFile = 1 << 20

// confFile is a configuration of a directory, or why it is none.
type confFile struct {
	path string
	raw  []byte
	conf *conf
	err  error
}

// onDisk is the configuration of that name in ConfDir: that of a .conflist file,
// else that of a .conf or .json file, the alphabetically first of each (the
// standard, section 3.4.1). Other files may be broken.
func (f *Finder) onDisk(name string) (*Network, error) {
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

// first is the alphabetically first configuration of a directory that is not of
// the plugin that asks, whose own may be there too.
func (f *Finder) first(dir string) (*Network, error) {
	files, err := confFiles(dir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		switch {
		case file.err != nil:
			return nil, file.err // the order decides, so the next one would be another network
		case f.notSelf(file.path, file.conf) == nil:
			return &Network{Conf: file.raw, From: file.path}, nil
		}
	}
	return nil, fmt.Errorf("%w in %s: no .conflist, .conf or .json file of another plugin", ErrNotFound, dir)
}

// confFiles reads the files with one of some extensions, in the order of their
// names. A directory that is not there has none.
func confFiles(path string, exts []string) ([]confFile, error) {
	dir, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("directory of networks: %w", err)
	}
	defer dir.Close()
	if err := trusted(dir, "."); err != nil {
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

// readConfFile reads a configuration, whose name has to be in it.
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

// trusted refuses a directory in which others may make files.
func trusted(dir *os.Root, name string) error {
	st, err := dir.Stat(name)
	if err != nil {
		return fmt.Errorf("directory of networks: %w", err)
	}
	return smallfile.Trusted(filepath.Join(dir.Name(), name), st)
}
