import { mkdir, rm, writeFile } from 'node:fs/promises';
import { arch } from 'node:os';
import { type Component, cachedBuild, testbedCommand } from './component.ts';

const version = '26.10.0';
const npmPackage = `node-linux-${arch()}`;
const cachedNode = cachedBuild('node26', version, `node_modules/${npmPackage}/bin/node`);

/** The next LTS release. `engines` allows it in addition to the Node that npm scripts use. */
export const node26: Component = {
  what: `Node ${version}`,
  probe: cachedNode.probe,
  tool: cachedNode.tool,
  command: testbedCommand,
  make: async (run) => {
    await rm(cachedNode.folder(), { recursive: true, force: true });
    await mkdir(cachedNode.folder(), { recursive: true });
    await writeFile(`${cachedNode.folder()}/package.json`, '{"private":true}\n');
    const flags = ['--no-audit', '--no-fund', '--ignore-scripts', '--save-exact'];
    await run('npm', ['install', ...flags, `${npmPackage}@${version}`], { cwd: cachedNode.folder() });
    await run(cachedNode.tool(), ['--version']);
    await writeFile(cachedNode.marker(), '');
  },
};
