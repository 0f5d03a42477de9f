import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { createMountCheck } from '../mount-check.ts';

// Runs a program inside the mount namespace of run.ts, and writes the mounts that it left behind to LEFT_FILE.
// Arguments: LEFT_FILE PROGRAM ARGUMENT…

const [leftFile = '', program = '', ...args] = process.argv.slice(2);
const leftMounts = await createMountCheck();
const [code] = (await once(spawn(program, args, { stdio: 'inherit' }), 'exit')) as [number | null];
await writeFile(leftFile, JSON.stringify(await leftMounts()));
process.exitCode = code ?? 1;
