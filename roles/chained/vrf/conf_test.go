package vrf_test

import (
	"testing"

	"github.com/cnibox/cnibox/roles/chained/vrf"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestConf(t *testing.T) {
	rolestest.CheckFaults(t, vrf.Role(), []rolestest.FaultyConf{
		{Name: "name", Conf: `{"vrfname":"red"}`},
		{Name: "table", Conf: `{"vrfname":"red","table":4294967295}`},
		{Name: "main table", Conf: `{"vrfname":"red","table":254}`},
		{Name: "no name", Conf: `{}`, Paths: []string{"vrfname"}},
		{Name: "long name", Conf: `{"vrfname":"sixteen-letters-"}`, Paths: []string{"vrfname"}},
		{Name: "name of another kind", Conf: `{"vrfname":"a b"}`, Paths: []string{"vrfname"}},
		{Name: "all faults", Conf: `{"vrfname":"all","table":255}`, Paths: []string{"vrfname", "table"}},
		{Name: "negative table", Conf: `{"vrfname":"red","table":-1}`, Paths: []string{"table"}},
		{Name: "table of another type", Conf: `{"vrfname":"red","table":"10"}`, Paths: []string{"table"}},
	})
}
