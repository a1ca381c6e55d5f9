// Package suites requires the module whose test suites build.sh builds.
package suites

import _ "github.com/containernetworking/plugins/pkg/ns"
