"""Settings of Apache's broker that have no effect here, with their defaults.

They are for thread pools, their queues, memory maps, details of POP and other stores. Files written for Apache's
brokers contain them, so they are accepted, checked and listed.
"""

from skyroute.settings.keys import INERT_SETTINGS, InertSettings, Scope, inert_settings

_BROKER = """
    recoverConcurrently=false sendMessageThreadPoolNums=4 putMessageFutureThreadPoolNums=4
    pullMessageThreadPoolNums=24 litePullMessageThreadPoolNums=24 ackMessageThreadPoolNums=16
    processReplyMessageThreadPoolNums=24 queryMessageThreadPoolNums=12 adminBrokerThreadPoolNums=16
    clientManageThreadPoolNums=32 consumerManageThreadPoolNums=32 loadBalanceProcessorThreadPoolNums=32
    heartbeatThreadPoolNums=4 recoverThreadPoolNums=32 endTransactionThreadPoolNums=24
    flushConsumerOffsetHistoryInterval=60000 fetchNameSrvAddrByDnsLookup=false sendThreadPoolQueueCapacity=10000
    putThreadPoolQueueCapacity=10000 pullThreadPoolQueueCapacity=100000 litePullThreadPoolQueueCapacity=100000
    ackThreadPoolQueueCapacity=100000 replyThreadPoolQueueCapacity=10000 queryThreadPoolQueueCapacity=20000
    clientManagerThreadPoolQueueCapacity=1000000 consumerManagerThreadPoolQueueCapacity=1000000
    heartbeatThreadPoolQueueCapacity=50000 endTransactionPoolQueueCapacity=100000
    adminBrokerThreadPoolQueueCapacity=10000 loadBalanceThreadPoolQueueCapacity=100000 highSpeedMode=false
    commercialBaseCount=1 commercialSizePerMsg=4096 accountStatsEnable=true accountStatsPrintZeroValues=true
    maxStatsIdleTimeInMinutes=-1 transferMsgByHeap=true sendHeartbeatTimeoutMillis=1000
    disableConsumeIfConsumerReadSlowly=false consumerFallbehindThreshold=17179869184 brokerFastFailureEnable=true
    waitTimeMillsInSendQueue=200 waitTimeMillsInPullQueue=5000 waitTimeMillsInLitePullQueue=5000
    waitTimeMillsInHeartbeatQueue=31000 waitTimeMillsInTransactionQueue=3000 waitTimeMillsInAckQueue=3000
    waitTimeMillsInAdminBrokerQueue=5000 enableCalcFilterBitMap=false
    expectConsumerNumUseFilter=32 maxErrorRateOfBloomFilter=20 filterDataCleanTimeSpan=86400000
    updateNameServerAddrPeriod=120000 enableNetWorkFlowControl=false enableBroadcastOffsetStore=true
    broadcastOffsetExpireSecond=120 broadcastOffsetExpireMaxSecond=300 popPollingSize=1024 popPollingMapSize=100000
    popPollingMapExpireTimeSeconds=600 maxPopPollingSize=100000 reviveQueueNum=8 reviveInterval=1000 reviveMaxSlow=3
    reviveScanTime=10000 enableSkipLongAwaitingAck=false reviveAckWaitMs=180000 enablePopLog=false
    enablePopBufferMerge=false popCkStayBufferTime=10000 popCkStayBufferTimeOut=3000 popCkMaxBufferSize=200000
    popCkOffsetMaxQueueSize=20000 enablePopBatchAck=false popLongPollingForceNotifyInterval=800
    enableNotifyBeforePopCalculateLag=true enableNotifyAfterPopOrderLockRelease=true initPopOffsetByCheckMsgInMem=true
    retrieveMessageFromPopRetryTopicV1=true enableRetryTopicV2=false
    popConsumerFSServiceInit=true popConsumerKVServiceLog=false popConsumerKVServiceInit=false
    popConsumerKVServiceEnable=false popReviveMaxReturnSizePerRead=16384 popReviveMaxAttemptTimes=16
    realTimeNotifyConsumerChange=true syncBrokerMemberGroupPeriod=1000 loadBalancePollNameServerInterval=30000
    cleanOfflineBrokerInterval=30000 serverLoadBalancerEnable=true defaultMessageRequestMode=PULL
    defaultPopShareQueueNum=-1 transactionMetricFlushInterval=10000 enableDetailStat=true autoDeleteUnusedStats=true
    isolateLogEnable=false enableRemoteEscape=false skipPreOnline=false asyncSendEnable=true
    consumerOffsetUpdateVersionStep=500 delayOffsetUpdateVersionStep=200
    fetchControllerAddrByDnsLookup=false
    syncControllerMetadataPeriod=10000
    useStaticSubscription=false metricsOtelCardinalityLimit=50000 metricsGrpcExporterTarget=
    metricsGrpcExporterHeader= metricGrpcExporterTimeOutInMills=3000 metricGrpcExporterIntervalInMills=60000
    metricLoggingExporterIntervalInMills=10000 metricsLabel= metricsInDelta=false enableRemotingMetrics=true
    enableMessageStoreMetrics=true enablePopMetrics=true enableConnectionMetrics=true enableTransactionMetrics=true
    enableStatsMetrics=true enableRequestMetrics=true enableLagAndDlqMetrics=true estimateAccumulation=true
    coldCtrStrategyEnable=false usePIDColdCtrStrategy=true cgColdReadThreshold=3145728
    globalColdReadThreshold=104857600 fetchNamesrvAddrInterval=10000 popResponseReturnActualRetryTopic=false
    enableSplitRegistration=false enableSplitMetadata=true splitMetadataSize=2000
    popInflightMessageThreshold=10000 enablePopMessageThreshold=false enableFastChannelEventProcess=false
    printChannelGroups=false printChannelGroupsMinNum=5 splitRegistrationSize=800 skipWhenCKRePutReachMaxTimes=false
    appendAckAsync=false appendCkAsync=false enableLmqStats=false configManagerVersion=v1 enableRegisterProducer=true
    subscriptionExpiredTimeout=600000 lockInStrictMode=false forwardTimeout=3000 transactionOpBatchInterval=3000
"""
_STORE = """
    disappearTimeAfterStart=-1
    storePathDLedgerCommitLog= compactionMappedFileSize=104857600
    compactionCqMappedFileSize=10485760 compactionScheduleInternal=900000 maxOffsetMapSize=104857600
    compactionThreadNum=6 enableCompaction=true mappedFileSizeTimerLog=104857600 timerRollWindowSlot=172800
    timerFlushIntervalMs=1000 timerGetMessageThreadNum=3 timerPutMessageThreadNum=3 timerEnableDisruptor=false
    timerEnableCheckMetrics=true timerInterceptDelayLevel=false timerStopEnqueue=false timerCheckMetricsWhen=05
    timerSkipUnknownError=false timerWarmEnable=false timerStopDequeue=false timerEnableRetryUntilSuccess=false
    timerCongestNumEachSlot=2147483647 timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000
    enableConsumeQueueExt=false mappedFileSizeConsumeQueueExt=50331648
    bitMapLengthConsumeQueueExt=64 commitIntervalCommitLog=200 maxRecoveryCommitlogFiles=30
    useReentrantLockWhenPutMessage=true flushCommitLogTimed=true flushIntervalConsumeQueue=1000
    deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100 destroyMapedFileIntervalForcibly=120000
    redeleteHangedFileInterval=120000 putMsgIndexHightWater=600000 maxFilterMessageSize=16000 checkCRCOnRecover=true
    flushCommitLogLeastPages=4 commitCommitLogLeastPages=4 flushLeastPagesWhenWarmMapedFile=4096
    flushConsumeQueueLeastPages=2 flushCommitLogThoroughInterval=10000 commitCommitLogThoroughInterval=200
    flushConsumeQueueThoroughInterval=60000 maxTransferBytesOnMessageInDisk=65536 maxTransferCountOnMessageInDisk=8
    maxMsgsNumBatch=64 messageIndexSafe=false
    putMessageTimeout=8000 warmMapedFileEnable=false offsetCheckInSlave=false debugLockEnable=false
    duplicationEnable=false diskFallRecorded=true osPageCacheBusyTimeOutMills=1000 transientStorePoolEnable=false
    transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false writeWithoutMmap=false dLegerGroup= dLegerPeers=
    dLegerSelfId= preferredLeaderId= enableBatchPush=false enableScheduleMessageStats=true maxLmqConsumeQueueNum=20000
    enableScheduleAsyncDeliver=false scheduleAsyncDeliverMaxPendingLimit=2000
    scheduleAsyncDeliverMaxResendNum2Blocked=3 maxBatchDeleteFilesNum=50 dispatchCqThreads=10 dispatchCqCacheNum=4096
    enableAsyncReput=true recheckReputOffsetFromCq=false maxTopicLength=127 autoMessageVersionOnTopicLen=true
    enableRunningFlagsInFlush=false enabledAppendPropCRC=false forceVerifyPropCRC=false
    travelCqFileNumWhenGetMessage=1 correctLogicMinOffsetSleepInterval=1 correctLogicMinOffsetForceInterval=300000
    mappedFileSwapEnable=true commitLogForceSwapMapInterval=43200000 commitLogSwapMapInterval=3600000
    commitLogSwapMapReserveFileNum=100 logicQueueForceSwapMapInterval=43200000 logicQueueSwapMapInterval=3600000
    cleanSwapedMapInterval=300000 logicQueueSwapMapReserveFileNum=20 searchBcqByCacheEnable=true
    dispatchFromSenderThread=false wakeCommitWhenPutMessage=true wakeFlushWhenPutMessage=false
    enableCleanExpiredOffset=false maxAsyncPutMessageRequests=5000 pullBatchMaxMessageCount=160 totalReplicas=1

    syncMasterFlushOffsetWhenStartup=false
    maxChecksumRange=1073741824 replicasPerDiskPartition=1 logicalDiskSpaceCleanForciblyThreshold=0.8
    maxSlaveResendLength=268435456 maxConsumeQueueScan=20000
    sampleCountThreshold=5000 coldDataFlowControlEnable=false coldDataScanEnable=false dataReadAheadEnable=true
    timerColdDataCheckIntervalMs=60000 sampleSteps=32 accessMessageInMemoryHotRatio=26
    enableBuildConsumeQueueConcurrently=false batchDispatchRequestThreadPoolNums=16 cleanRocksDBDirtyCQIntervalMin=60
    statRocksDBCQIntervalSec=10 memTableFlushIntervalMs=3600000 realTimePersistRocksDBConfig=true
    enableRocksDBLog=false topicQueueLockNum=32 readUnCommitted=false putConsumeQueueDataByFileChannel=true
    rocksdbCQDoubleWriteEnable=false combineCQLoadingCQTypes=default;defaultRocksDB combineCQPreferCQType=default
    combineAssignOffsetCQType=default combineCQEnableCheckSelf=false combineCQMaxExtraSearchCommitLogFiles=3
    bottomMostCompressionTypeForConsumeQueueStore=zstd rocksdbCompressionType=lz4 rocksdbFlushWalFrequency=1024
    rocksdbWalFileRollingThreshold=1073741824 enableAcceleratedRecovery=false
    spinLockCollisionRetreatOptimalDegree=1000 useABSLock=false enableLogConsumeQueueRepeatedlyBuildWhenRecover=false
"""

BROKER_INERT_SETTINGS: InertSettings = (
    INERT_SETTINGS | inert_settings(Scope.BROKER, _BROKER) | inert_settings(Scope.STORE, _STORE)
)
