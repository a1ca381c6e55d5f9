module github.com/cnibox/cnibox/test/peers/suites

go 1.26

require (
	github.com/containernetworking/cni v1.3.0
	github.com/containernetworking/plugins v1.9.1
)

require (
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.35.0 // indirect
)

tool github.com/containernetworking/cni/cnitool
