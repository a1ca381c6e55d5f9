package main

import (
	"context"
	"path/filepath"

	"github.com/cnibox/cnibox/test/internal/debian"
)

// emulatorRelease is the release of Debian whose QEMU emulates a card with virtual functions (igb, since QEMU 8.0).
const emulatorRelease = "trixie"

// emulatorPackages have that QEMU, its firmware and its libraries.
func emulatorPackages() []string {
	return []string{
		"qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios", "libaio1t64", "libblkid1", "libbpf1", "libc6", "libcap2", "libcapstone5",
		"libdaxctl1", "libelf1t64", "libfdt1", "libffi8", "libfuse3-4", "libgcc-s1", "libglib2.0-0t64", "libgmp10", "libgnutls30t64", "libhogweed6t64",
		"libibverbs1", "libidn2-0", "libjpeg62-turbo", "libkmod2", "liblzma5", "libmount1", "libndctl6", "libnettle8t64", "libnl-3-200", "libnl-route-3-200",
		"libnuma1", "libp11-kit0", "libpcre2-8-0", "libpixman-1-0", "libpmem1", "libpng16-16t64", "librdmacm1t64", "libsasl2-2", "libseccomp2", "libselinux1",
		"libslirp0", "libssl3t64", "libtasn1-6", "libudev1", "libunistring5", "liburing2", "libvdeplug2t64", "libzstd1", "zlib1g",
	}
}

// prepareEmulator returns the command of QEMU: this machine's, or for a card with virtual functions an unpacked one, which its own
// loader starts.
func prepareEmulator(ctx context.Context, o options) ([]string, error) {
	if !o.functions {
		return []string{o.arch.qemu}, nil
	}
	dir := filepath.Join(o.cache, "qemu-"+emulatorRelease)
	if err := debian.UnpackOnce(ctx, dir, emulatorRelease, o.arch.name, emulatorPackages()...); err != nil {
		return nil, err
	}
	libraries := filepath.Join(dir, "usr", "lib", o.arch.libs)
	return []string{
		filepath.Join(libraries, filepath.Base(o.arch.loader)), "--library-path", libraries, filepath.Join(dir, "usr", "bin", o.arch.qemu),
		"-L", filepath.Join(dir, "usr", "share", "seabios"), "-L", filepath.Join(dir, "usr", "share", "qemu"),
	}, nil
}
