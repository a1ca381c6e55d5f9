// Cidrset does with kube-controller-manager's allocator what the lines of its input say, and prints a line for each: the arguments are
// the cluster network and the prefix length of a node's block. The lines are "take", "occupy NETWORK" and "release NETWORK".
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	_, cluster, err := net.ParseCIDR(os.Args[1])
	if err != nil {
		return err
	}
	length, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	set, err := cidrset.NewCIDRSet(cluster, length)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		op, text, _ := strings.Cut(in.Text(), " ")
		_, network, _ := net.ParseCIDR(text)
		var result any = "ok"
		switch op {
		case "take":
			result, err = set.AllocateNext()
		case "occupy":
			err = set.Occupy(network)
		case "release":
			err = set.Release(network)
		}
		if err != nil {
			result = "error"
		}
		fmt.Println(result)
	}
	return in.Err()
}
