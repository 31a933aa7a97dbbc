package systemd

// Passed tells whether a socket unit owns the socket.
func (l *Listener) Passed() bool { return l.passed }
