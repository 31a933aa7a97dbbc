package logstore

// MessageID says what kind of thing a record of the runtime tells, for those
// who look for it in the journal: `journalctl MESSAGE_ID=…`. Given to slog as
// an attribute, see ID. The values never change; packaging/ has a catalog with
// an explanation for each (https://systemd.io/CATALOG).
type MessageID string

// The kinds of record with an identity.
const (
	// RuntimeStarted: the runtime has started and will load its kept streams.
	RuntimeStarted MessageID = "e785d1065aa04afa97ffa340ab1a936a"
	// RuntimeStopping: the runtime was asked to stop.
	RuntimeStopping MessageID = "b8be710b606f4b23a21c6d86b39187a4"
	// RuntimeCrashed: the runtime before this one crashed; says which streams it is counted against.
	RuntimeCrashed MessageID = "8852055c3a8e494a8ce747a4d8bfeb8d"
	// StreamLoaded: a stream was loaded, attached or kept.
	StreamLoaded MessageID = "0fac601d6fd4443282dc75cc7d2bdea2"
	// StreamKept: a stream was handed to the runtime to keep, or its record replaced.
	StreamKept MessageID = "cf03d68624344e7a98c5aec7f465737e"
	// StreamStopped: a stream was unloaded: stopped by hand, or the command it was attached to ended.
	StreamStopped MessageID = "1e7da21f011443aca2bacf1e406686cb"
	// StreamRemoved: a kept stream was forgotten.
	StreamRemoved MessageID = "ddb3d68fbe9b4015b115523921e3f1fb"
	// StreamReloaded: a stream was replaced by a new version of itself.
	StreamReloaded MessageID = "93b4ca83ce7d4c1ab40bc5562f6ffc0d"
	// StreamFailed: a kept stream is no longer loaded; says why.
	StreamFailed MessageID = "f520207ee4e44a97be150aa5e836003b"
	// StreamRefused: a stream or a new version of it did not compile; what ran before runs on.
	StreamRefused MessageID = "aa6b121a0b014b10a004634d66ce1786"
	// NodeDied: a node process ended that should not have; says the cause and when it is started again.
	NodeDied MessageID = "371febe86f9d4329b6d4c06651d838b4"
	// NodeKilled: a node process did not stop in time and was killed.
	NodeKilled MessageID = "d32e7de6d071420eb3670a75224f7530"
	// NodeOutOfMemory: a node process was killed by the kernel for want of memory.
	NodeOutOfMemory MessageID = "9a3f857c81db4d3cbe04f306dac06d1a"
	// NodeLeftProcesses: a node process left processes behind, which were ended.
	NodeLeftProcesses MessageID = "0dd7c373a0c74018afb8f89fff7df2ec"
	// CameraLost: a camera was unplugged or stopped delivering.
	CameraLost MessageID = "978b5a5565854b9b8a3bfc82fb19d3ee"
	// CameraBack: a camera delivers again.
	CameraBack MessageID = "51f287349e3549c988cf5db930d35845"
	// LogIncomplete: records of a log could not be written.
	LogIncomplete MessageID = "da1dd70e844c41e580cda8e75589e636"
	// RecordUnreadable: the record of a kept stream could not be read; its file was kept aside.
	RecordUnreadable MessageID = "968f37842e654e1f88d1a4b7ef648574"
)
