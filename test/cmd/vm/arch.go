package main

// arch is what differs between the processors of the machine.
type arch struct {
	name    string   // Go's and Debian's
	qemu    string   // the emulator
	machine []string // its options: processor, and a serial port for the report beside the one for the console
	params  string   // of the kernel
	report  string   // the report's serial port in /dev
	libs    string   // Debian's subdirectory for libraries
	loader  string   // of programs that are linked with libraries

	// functions are the options for a machine with a network card that has virtual functions, or none.
	functions []string

	// programs replace busybox's applets of the same names, which lack options that tests use. They are first on PATH.
	programs []string
	// packages have busybox, the programs and their libraries. If there are none, all are this machine's.
	packages []string
}

func archs() map[string]arch {
	return map[string]arch{
		"amd64": {
			name: "amd64", qemu: "qemu-system-x86_64", machine: []string{"-cpu", "max", "-serial", "stdio"},
			// The kernel does not use string instructions (REP_GOOD, ERMS, FSRM). The emulator executes them byte by byte; clearing and
			// copying pages with plain moves halves the time of starting a program.
			params: "console=ttyS0 clearcpuid=112,297,580", report: "ttyS1",
			libs: "x86_64-linux-gnu", loader: "lib64/ld-linux-x86-64.so.2",
			// An Intel 82576. Only a PCI Express port makes virtual functions possible. Without a ROM the firmware has nothing to load.
			functions: []string{
				"-machine", "q35", "-device", "pcie-root-port,id=port0,bus=pcie.0,chassis=1",
				"-netdev", "hubport,id=net2,hubid=0", "-device", "igb,netdev=net2,bus=port0,mac=52:54:00:00:00:02,romfile=",
			},
			programs: []string{
				"bridge", "dnsmasq", "ip", "nft", "nsenter", "tc",
				"iptables", "iptables-save", "iptables-nft", "iptables-nft-save", "iptables-legacy", "iptables-legacy-restore", "iptables-legacy-save",
				"ip6tables", "ip6tables-save", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-legacy", "ip6tables-legacy-restore", "ip6tables-legacy-save",
			},
		},
		"arm64": {
			// A cloud's processor. It has no pointer authentication, which the emulator is slow at.
			name: "arm64", qemu: "qemu-system-aarch64", machine: []string{
				"-machine", "virt", "-cpu", "neoverse-n1", "-chardev", "stdio,id=report", "-device", "pci-serial,chardev=report",
			},
			params: "console=ttyAMA0", report: "ttyS0",
			libs: "aarch64-linux-gnu", loader: "lib/ld-linux-aarch64.so.1",
			programs: []string{"bridge", "ip", "nft", "nsenter", "sh", "tc", "unshare"}, // busybox's shell prefers its applets to those on PATH
			packages: []string{
				"busybox-static", "dash", "iproute2", "nftables", "util-linux", "libbpf1", "libbsd0", "libc6", "libcap2", "libedit2", "libelf1", "libgmp10",
				"libjansson4", "libmd0", "libmnl0", "libnftables1", "libnftnl11", "libpcre2-8-0", "libselinux1", "libtinfo6", "libtirpc3",
				"libxtables12", "zlib1g",
			},
		},
	}
}
