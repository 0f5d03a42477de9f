import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Component, cachedBuild, commandFailure, testbedCommand } from './component.ts';

const version = '4.32.5';
const cachedTool = cachedBuild('schemathesis', version, 'bin/schemathesis');
const requirements = join(import.meta.dirname, 'schemathesis.txt');

/** Property tests from an OpenAPI document, in a Python virtual environment. */
export const schemathesis: Component = {
  what: `schemathesis ${version}`,
  probe: cachedTool.probe,
  tool: cachedTool.tool,
  command: testbedCommand,
  packages: () =>
    commandFailure('python3', ['-c', 'import ensurepip, venv']) === undefined ? [] : ['python3', 'python3-venv'],
  make: async (run) => {
    await rm(cachedTool.folder(), { recursive: true, force: true });
    await mkdir(cachedTool.folder(), { recursive: true });
    await run('python3', ['-c', 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"']);
    await run('python3', ['-m', 'venv', cachedTool.folder()]);
    const pip = join(cachedTool.folder(), 'bin', 'pip');
    await run(pip, ['install', '--disable-pip-version-check', '--no-input', '-r', requirements]);
    await run(cachedTool.tool(), ['--version']);
    await writeFile(cachedTool.marker(), '');
  },
};
