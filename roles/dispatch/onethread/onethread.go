// Package onethread makes a process start on one CPU; main imports it for that
// effect. What serves many, a daemon or a command line, takes more by Lift.
//
// A call is over before other threads could help it, and to begin them costs:
// they are cloned and woken for work that is done by then, and each CPU has an
// allocator of its own, whose memory faults in page by page. The package imports
// nothing but runtime, so it is initialised among the first: of an ADD's 570
// page faults that saves 95 more than the same call at the start of main.
package onethread

import "runtime"

var _ = runtime.GOMAXPROCS(1)

// most is more than any daemon here keeps busy; on a large node each further CPU
// would only be one more to collect garbage on.
const most = 4

// Lift gives the process the CPUs that it may run on (sched_getaffinity(2)), at
// most four.
func Lift() { runtime.GOMAXPROCS(min(runtime.NumCPU(), most)) }
