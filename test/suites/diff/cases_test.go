package diff

import "slices"

// allCases returns every case, by role.
func allCases() []testCase {
	return slices.Concat(
		bridgeCases(), ptpCases(), macvlanCases(), tapCases(), vlanCases(), ipvlanCases(), dummyCases(), hostDeviceCases(), loopbackCases(),
		ipamCases(), portmapCases(), firewallCases(), tuningCases(), bandwidthCases(), sbrCases(), vrfCases(),
	)
}
