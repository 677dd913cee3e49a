"""Names of the settings of a controller, for the name server that shares a properties file with one."""

from typing import Final

_NAMES = """
configBlackList configStorePath controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId controllerListenPort
controllerMetricsPort controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums
controllerType journalEnable
electMasterMaxRetryCount etcdEndpoints etcdLeaseSeconds etcdPassword etcdPrefix etcdUser
enableElectUncleanMaster isProcessReadEvent jRaftControllerRPCAddr jRaftElectionTimeoutMs
jRaftGroupId jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs listenBeforeElectionMillis
mappedFileSize metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
metricsPromExporterHost metricsPromExporterPort notifyBrokerRoleChanged processReadEvent scanInactiveMasterInterval
scanNotActiveBrokerInterval
"""

CONTROLLER_KEYS: Final = frozenset(_NAMES.split())
"""A test compares them with `controller.config`, which the name server does not import."""
