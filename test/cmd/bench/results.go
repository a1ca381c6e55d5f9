package main

import "time"

// results are all measurements of one run; a section that did not run is nil.
type results struct {
	Machine    machine           `json:"machine"`
	Reference  string            `json:"reference"` // the release of the reference plugins
	Rounds     int               `json:"rounds"`
	Version    *compared         `json:"version,omitempty"`
	Bridge     *bridgeResult     `json:"bridge,omitempty"`
	NFT        *bridgeResult     `json:"nft,omitempty"`
	Parallel   *parallelResult   `json:"parallel,omitempty"`
	Chain      *chainResult      `json:"chain,omitempty"`
	Fused      *chainResult      `json:"fused,omitempty"`
	Published  []publishedResult `json:"published,omitempty"`
	Networks   *networksResult   `json:"networks,omitempty"`
	Azure      *azureResult      `json:"azure,omitempty"`
	Interfaces []interfaceResult `json:"interfaces,omitempty"`
	Roles      []roleVersion     `json:"roles,omitempty"`
	Startup    *startupResult    `json:"startup,omitempty"`
	Alloc      []allocResult     `json:"alloc,omitempty"`
	DHCP       *dhcpResult       `json:"dhcp,omitempty"`
	Storm      *stormResult      `json:"storm,omitempty"` // measured once, unlike the others
	Notes      []string          `json:"notes,omitempty"` // sections that could not be measured, with the reasons
}

// bridgeResult is one container at a time through bridge + host-local + ipMasq.
type bridgeResult struct {
	Add   compared `json:"add"`
	Check compared `json:"check"`
	Del   compared `json:"del"`
}

// parallelResult is many containers at once; the rates are whole calls per second of wall time.
type parallelResult struct {
	Containers int   `json:"containers"`
	AtATime    int   `json:"atATime"`
	Add        rates `json:"add"`
	Del        rates `json:"del"`
	// The single calls.
	AddCalls compared `json:"addCalls"`
	DelCalls compared `json:"delCalls"`
}

// rates are calls per second.
type rates struct {
	Ours float64 `json:"ours"`
	Peer float64 `json:"peer"`
}

func (r rates) speedup() float64 { return ratio(r.Ours, r.Peer) }

// startupResult is the cost of starting a plugin before it does its work.
type startupResult struct {
	OursBridge    bill  `json:"oursBridge"`
	PeerBridge    bill  `json:"peerBridge"`
	PeerHostLocal bill  `json:"peerHostLocal"`
	OursBytes     int64 `json:"oursBytes"` // all files of the side together
	PeerBytes     int64 `json:"peerBytes"`
	OursFiles     int   `json:"oursFiles"`
	PeerFiles     int   `json:"peerFiles"`
}

// bill is the cost of starting one binary.
type bill struct {
	Init     time.Duration `json:"init"` // sum of all package initialisers, median of the runs
	Top      []initCost    `json:"top"`  // the slowest packages
	Packages int           `json:"packages"`
	Foreign  int           `json:"foreign"` // packages from outside the standard library
	Modules  int           `json:"modules"`
	Bytes    int64         `json:"bytes"`
}

// initCost is the initialisation of one package, the median of the runs.
type initCost struct {
	Package string        `json:"package"`
	Clock   time.Duration `json:"clock"`
}

// allocResult is one allocation from a /16 that is Full percent full.
type allocResult struct {
	Full      string        `json:"full"`
	Addresses int           `json:"addresses"` // taken before
	InProcess time.Duration `json:"inProcess"` // ours, mean of the Go benchmark; 0 when it was not run
	Exec      compared      `json:"exec"`      // host-local executed on both sides
}
