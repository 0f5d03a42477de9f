export { type Clock, systemClock } from '#base/clock.ts';
export { type CallOptions, createRpcClient, type RpcClient, type RpcClientOptions } from '../rpc/client.ts';
export { RpcError, type RpcFailure } from '../rpc/errors.ts';
export type { Identity } from '../rpc/message.ts';
export { findPort, portmapPort } from '../rpc/portmap.ts';
export { createPrivilegedPorts } from '../rpc/privileged-ports.ts';
export { type Created, createNfsClient, type NfsClient } from './client.ts';
export { type CopyOptions, copyTree } from './copy-tree.ts';
export { createReadStream, type FileReaderOptions, readFile, readFully } from './file-reader.ts';
export { createFileWriter, createWriteStream, type FileWriter, type FileWriterOptions } from './file-writer.ts';
export { type ListingOptions, listDirectory } from './listing.ts';
export {
  type Export,
  listExports,
  MountError,
  type MountResult,
  type MountStatusName,
  mnt,
  mountProgram,
  mountVersion,
  unmnt,
} from './mount.ts';
export { NameError } from './names.ts';
export { accessRight, type DeferredBuffer, type ReadResult, type WriteResult } from './procedures.ts';
export { emptyDirectory, RemovalRefused, removeTree } from './remove-tree.ts';
export { errnoByStatus, isGone, isNfsError, NfsError, type NfsStatusName, nfsStatus } from './status.ts';
export {
  type Attributes,
  type Entry,
  type EntryPlus,
  type FileHandle,
  fileType,
  nameOf,
  nfsProgram,
  nfsVersion,
  type SetAttributes,
  stability,
  type Time,
} from './structures.ts';
export { type TreeOptions, type Visited, walkTree } from './walk-tree.ts';
