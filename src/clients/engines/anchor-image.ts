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
  if (!isSupported(processor)) throw new Error(`no anchor for a processor ${processor}`);
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

const isSupported = (processor: string): processor is Processor => processor in architectures;
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));

/** Sleeps until a signal arrives, in a loop. */
const instructions: Readonly<Record<Processor, Buffer>> = {
  // again: mov eax, 34 (pause); syscall; jmp again
  x64: Buffer.from('b8220000000f05ebf7', 'hex'),
  // again: mov x0..x3, 0; mov x8, 73 (ppoll); svc 0; b again
  arm64: instructionBytes(0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, 0xd2800928, 0xd4000001, 0x17fffffa),
};

function instructionBytes(...instructionWords: readonly number[]): Buffer {
  const bytes = Buffer.alloc(instructionWords.length * 4);
  for (const [index, word] of instructionWords.entries()) bytes.writeUInt32LE(word, index * 4);
  return bytes;
}

const elfHeaderBytes = 64;
const programHeaderBytes = 56;
const loadAddress = 0x40_0000n;

/** A static ELF executable with one segment, which is the whole file. */
export function anchorProgram(processor: Processor): Buffer {
  const code = instructions[processor];
  const start = elfHeaderBytes + programHeaderBytes;
  const size = BigInt(start + code.length);
  const file = Buffer.alloc(start + code.length);
  // 64 bits, little-endian, version 1, System V.
  Buffer.from('7f454c46020101', 'hex').copy(file);
  file.writeUInt16LE(2, 16); // ET_EXEC
  file.writeUInt16LE(processor === 'x64' ? 62 : 183, 18);
  file.writeUInt32LE(1, 20);
  file.writeBigUInt64LE(loadAddress + BigInt(start), 24);
  file.writeBigUInt64LE(BigInt(elfHeaderBytes), 32);
  file.writeUInt16LE(elfHeaderBytes, 52);
  file.writeUInt16LE(programHeaderBytes, 54);
  file.writeUInt16LE(1, 56);
  file.writeUInt32LE(1, elfHeaderBytes); // PT_LOAD
  file.writeUInt32LE(5, elfHeaderBytes + 4); // readable and executable
  file.writeBigUInt64LE(loadAddress, elfHeaderBytes + 16);
  file.writeBigUInt64LE(loadAddress, elfHeaderBytes + 24);
  file.writeBigUInt64LE(size, elfHeaderBytes + 32);
  file.writeBigUInt64LE(size, elfHeaderBytes + 40);
  file.writeBigUInt64LE(0x1_0000n, elfHeaderBytes + 48);
  code.copy(file, start);
  return file;
}

interface TarEntry {
  readonly name: string;
  readonly mode: number;
  readonly content: Buffer;
}

const tarBlockBytes = 512;

/** The old tar format: the names are short and all files belong to root. */
function tar(entries: readonly TarEntry[]): Buffer {
  const blocks = entries.flatMap(({ name, mode, content }) => {
    const paddingBytes = (tarBlockBytes - (content.length % tarBlockBytes)) % tarBlockBytes;
    return [tarHeader(name, mode, content.length), content, Buffer.alloc(paddingBytes)];
  });
  return Buffer.concat([...blocks, Buffer.alloc(2 * tarBlockBytes)]);
}

function tarHeader(name: string, mode: number, bytes: number): Buffer {
  const header = Buffer.alloc(tarBlockBytes);
  const writeOctal = (value: number, digits: number, offset: number): void => {
    header.write(value.toString(8).padStart(digits, '0'), offset);
  };
  header.write(name, 0);
  writeOctal(mode, 7, 100);
  for (const offset of [108, 116]) writeOctal(0, 7, offset);
  writeOctal(bytes, 11, 124);
  writeOctal(0, 11, 136);
  header.write('0', 156);
  header.write('ustar\u000000', 257);
  // The checksum is computed with spaces in its own field.
  header.fill(' ', 148, 156);
  writeOctal(
    header.reduce((sum, byte) => sum + byte, 0),
    6,
    148,
  );
  header[154] = 0;
  return header;
}
