package hostlocal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/leasing"
)

// importPath imports a directory of the reference plugin, or a file of ExportReservations.
func importPath(ctx context.Context, h *roles.Host, path string, force bool) (any, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		clean, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		return leasefiles.Import(ctx, h, filepath.Dir(clean), filepath.Base(clean), force)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("read %q: no regular file", path)
	}
	t, err := leasing.ReadTransfer(f)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return leasing.ImportReservations(ctx, h, t, force)
}
