// Package v4l2 captures from V4L2 cameras: finding the right one, choosing among
// what it offers, and the mmap loop that hands out the driver's own buffers.
//
// What go4vl has goes through its functions. Ioctls that name the type of buffer
// are here, since go4vl knows one of the two that capture pictures; so are those
// of the frame loop: they allocate nothing, keep the error number (go4vl folds
// ENODEV and seven others into one), and their arguments do not live on a stack
// that may move. A descriptor is waited on with poll and a time-out, never given to
// the Go netpoller: epoll loses wake-ups of V4L2 devices.
//
// Devices speak the single-planar interface (USB cameras) or the multi-planar one
// (camera interfaces of boards), where each plane may be in memory of its own. To
// all but planar.go the first is the second with one plane.
package v4l2
