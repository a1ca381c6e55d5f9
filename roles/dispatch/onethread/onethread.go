// Package onethread makes a process start on one CPU; main imports it for that
// effect. What is to have all of them, a daemon or a command line, takes them
// by package cpus.
//
// A call is over before other threads could help it, and to begin them costs:
// they are cloned and woken for work that is done by then, and each CPU has an
// allocator of its own, whose memory faults in page by page. The package imports
// nothing but runtime, so it is initialised among the first: of an ADD's 570
// page faults that saves 95 more than the same call at the start of main.
package onethread

import "runtime"

var _ = runtime.GOMAXPROCS(1)
