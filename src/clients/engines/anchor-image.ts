import { createHash } from 'node:crypto';

/** Change the tag when the content changes. */
export const anchorImage = 'stowage.dev/anchor:1';

/** Docker's names of Node's architectures. */
const architectures = { x64: 'amd64', arm64: 'arm64' } as const;
type Processor = keyof typeof architectures;

/**
 * The image of an anchor: a container whose only purpose is to be attached to a network. It contains one program of a few instructions that
 * sleeps. It is built here, so that nothing is pulled and there is nothing to attack. In the format of `docker load`.
 */
export function anchorImageTar(processor: string = process.arch): Buffer {
  if (!isKnown(processor)) throw new Error(`no anchor for a processor ${processor}`);
  const layer = tar([{ name: 'anchor', mode: 0o755, content: anchorProgram(processor) }]);
  const digest = createHash('sha256').update(layer).digest('hex');
  const config = json({
    architecture: architectures[processor],
    os: 'linux',
    created: '1970-01-01T00:00:00Z',
    // Process 1 ignores SIGTERM unless it has a handler.
    config: { Entrypoint: ['/anchor'], StopSignal: 'SIGKILL' },
    rootfs: { type: 'layers', diff_ids: [`sha256:${digest}`] },
  });
  const configName = `${createHash('sha256').update(config).digest('hex')}.json`;
  const manifest = json([{ Config: configName, RepoTags: [anchorImage], Layers: ['layer.tar'] }]);
  return tar([
    { name: configName, mode: 0o644, content: config },
    { name: 'layer.tar', mode: 0o644, content: layer },
    { name: 'manifest.json', mode: 0o644, content: manifest },
  ]);
}

const isKnown = (processor: string): processor is Processor => processor in architectures;
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));

/** Sleeps until a signal arrives, in a loop. */
const instructions: Readonly<Record<Processor, Buffer>> = {
  // again: mov eax, 34 (pause); syscall; jmp again
  x64: Buffer.from('b8220000000f05ebf7', 'hex'),
  // again: mov x0..x3, 0; mov x8, 73 (ppoll); svc 0; b again
  arm64: words(0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, 0xd2800928, 0xd4000001, 0x17fffffa),
};

function words(...all: readonly number[]): Buffer {
  const bytes = Buffer.alloc(all.length * 4);
  for (const [index, word] of all.entries()) bytes.writeUInt32LE(word, index * 4);
  return bytes;
}

const headerBytes = 64;
const segmentBytes = 56;
const loadedAt = 0x40_0000n;

/** A static ELF executable with one segment, which is the whole file. */
export function anchorProgram(processor: Processor): Buffer {
  const code = instructions[processor];
  const start = headerBytes + segmentBytes;
  const size = BigInt(start + code.length);
  const file = Buffer.alloc(start + code.length);
  // 64 bits, little-endian, version 1, System V.
  Buffer.from('7f454c46020101', 'hex').copy(file);
  file.writeUInt16LE(2, 16); // ET_EXEC
  file.writeUInt16LE(processor === 'x64' ? 62 : 183, 18);
  file.writeUInt32LE(1, 20);
  file.writeBigUInt64LE(loadedAt + BigInt(start), 24);
  file.writeBigUInt64LE(BigInt(headerBytes), 32);
  file.writeUInt16LE(headerBytes, 52);
  file.writeUInt16LE(segmentBytes, 54);
  file.writeUInt16LE(1, 56);
  file.writeUInt32LE(1, headerBytes); // PT_LOAD
  file.writeUInt32LE(5, headerBytes + 4); // readable and executable
  file.writeBigUInt64LE(loadedAt, headerBytes + 16);
  file.writeBigUInt64LE(loadedAt, headerBytes + 24);
  file.writeBigUInt64LE(size, headerBytes + 32);
  file.writeBigUInt64LE(size, headerBytes + 40);
  file.writeBigUInt64LE(0x1_0000n, headerBytes + 48);
  code.copy(file, start);
  return file;
}

interface Entry {
  readonly name: string;
  readonly mode: number;
  readonly content: Buffer;
}

const blockBytes = 512;

/** The old tar format: the names are short and all files belong to root. */
function tar(entries: readonly Entry[]): Buffer {
  const blocks = entries.flatMap(({ name, mode, content }) => {
    const rest = (blockBytes - (content.length % blockBytes)) % blockBytes;
    return [tarHeader(name, mode, content.length), content, Buffer.alloc(rest)];
  });
  return Buffer.concat([...blocks, Buffer.alloc(2 * blockBytes)]);
}

function tarHeader(name: string, mode: number, bytes: number): Buffer {
  const header = Buffer.alloc(blockBytes);
  const octal = (value: number, digits: number, at: number): void => {
    header.write(value.toString(8).padStart(digits, '0'), at);
  };
  header.write(name, 0);
  octal(mode, 7, 100);
  for (const at of [108, 116]) octal(0, 7, at);
  octal(bytes, 11, 124);
  octal(0, 11, 136);
  header.write('0', 156);
  header.write('ustar\u000000', 257);
  // The checksum is computed with spaces in its own field.
  header.fill(' ', 148, 156);
  octal(
    header.reduce((sum, byte) => sum + byte, 0),
    6,
    148,
  );
  header[154] = 0;
  return header;
}
